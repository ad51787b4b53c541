"""Every error regard raises on purpose. Each message says what was given, what was expected, and what to do.

RegardError
├── ShapeError          (ValueError)  tensors whose sizes do not fit together
├── DtypeError          (TypeError)   tensors of the wrong dtype, or of different ones
├── UnknownArgument     (TypeError)   an argument that a module does not take; says what to write instead
├── NotSupported        (ValueError)  an operation that this object does not support; names one that does
│   ├── PatternNotSupported
│   ├── BiasNotSupported
│   ├── StateNotSupported
│   ├── CaptureNotSupported
│   └── MissingPackage  (ImportError too) an optional package; names the extra that has it
├── UnknownName         (LookupError) no such mechanism, model or recipe; names the nearest
├── BadConfig           (ValueError)  invalid settings, alone or in combination
├── BadPattern          (ValueError)  text, or another object, that is not a pattern
├── BadFile             (ValueError)  a file with unexpected content
│   ├── MissingFile     (FileNotFoundError too)
│   └── Misfit          checkpoint tensors that are missing, unexpected or of another shape
├── BadText             (ValueError)  a string that cannot be encoded as UTF-8
├── RunExists           (FileExistsError) the folder holds a run that would be overwritten
├── RunInUse            (RuntimeError) another process writes to the run
├── CannotSave          (OSError)     the disk is full, read-only or not writable
├── OutOfMemory         (MemoryError) a model or its training needs more memory than there is
├── Diverged            (ArithmeticError) too many training steps in a row were skipped
├── QueueFull           (RuntimeError) the engine's request queue is full
├── ChildFailed         (RuntimeError) a measurement in a child process failed
└── Interrupted         training was stopped by a signal, after saving a checkpoint

DiffersWarning          (UserWarning) a checkpoint whose results differ from transformers' in a documented case
"""

import difflib
import signal
from collections.abc import Iterable

LONGEST = 5000  # characters of a message: it may quote a file, which may hold anything


def count(number: int, thing: str) -> str:
    """1 step; 3,000 steps.

    Args:
        number: count.
        thing: singular of the noun.
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class DiffersWarning(UserWarning):
    """A checkpoint whose results differ from transformers' in a documented case."""


class RegardError(Exception):
    """The base class of all errors of regard."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


class ShapeError(RegardError, ValueError):
    """Tensors whose sizes do not fit together."""


class DtypeError(RegardError, TypeError):
    """Tensors of the wrong dtype, or of different ones."""


INSTEAD = {  # arguments of PyTorch's attention, and what is written here
    "is_causal": "pass the pattern causal",
    "attn_mask": "pass a boolean mask (True = may attend) as pattern=keep(mask), a float mask as bias=mask",
    "mask": "pass a boolean mask (True = may attend) as pattern=keep(mask), a float mask as bias=mask",
    "key_padding_mask": "pass pattern=lengths(n), or keep(~mask[:, None, None, :]), as True means padding there",
    "dropout_p": "make the mechanism with it, SoftmaxAttention(dropout=…), which acts in training mode",
    "scale": "make the mechanism with it, SoftmaxAttention(scale=…)",
    "enable_gqa": "leave it out: k and v may have fewer heads than q",
    "need_weights": "call weights(…) with the same arguments, or record them with regard.capture",
    "average_attn_weights": "call weights(…) with the same arguments, or record them with regard.capture",
}


class UnknownArgument(RegardError, TypeError):
    """An argument that a module does not take.

    Args:
        module: module that was called.
        names: names of the arguments.
    """

    def __init__(self, module: object, names: Iterable[str]):
        name = next(iter(names))
        instead = INSTEAD.get(name, "its arguments are in help(type(module).forward)")
        super().__init__(f"{type(module).__name__} takes no argument {name}; {instead}")


class NotSupported(RegardError, ValueError):
    """An operation that this object does not support."""


class PatternNotSupported(NotSupported):
    """The mechanism cannot be restricted to this pattern."""


class BiasNotSupported(NotSupported):
    """The mechanism has no scores to add a bias to."""


class StateNotSupported(NotSupported):
    """The mechanism or its state does not support streaming, or not this operation."""


class CaptureNotSupported(NotSupported):
    """The attention weights of this call cannot be captured."""


class MissingPackage(NotSupported, ImportError):
    """An optional package that this needs is not installed; `name` is the package.

    Args:
        message: sentence with the command that installs it.
        package: name of the package.
    """

    def __init__(self, message: str, package: str | None = None):
        super().__init__(message)
        self.name = package


class UnknownName(RegardError, LookupError):
    """No such mechanism, model or recipe.

    Args:
        kind: kind of thing, for the message.
        name: name that was given.
        known: names that exist, the nearest of which is suggested.
        hint: what to say instead of the nearest name.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = ""):
        self.kind, self.given, self.known = kind, name, list(known)
        known, name = self.known, name if len(name) <= 80 else f"{name[:79]}…"
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = hint or (f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known: {', '.join(known)}")
        super().__init__(f"no {kind} is called {name!r}; {hint}")


class BadConfig(RegardError, ValueError):
    """Invalid settings, alone or in combination."""


class BadPattern(RegardError, ValueError):
    """Text, or another object, that is not a pattern."""


class BadFile(RegardError, ValueError):
    """A file with unexpected content."""


class MissingFile(BadFile, FileNotFoundError):
    """A file that does not exist."""


class Misfit(BadFile):
    """The tensors of a checkpoint do not match its model: every name is in `missing`, `unknown` or `sizes`.

    Args:
        origin: file or directory of the checkpoint.
        missing: tensors of the model that the checkpoint lacks.
        unknown: tensors of the checkpoint that the model lacks.
        sizes: tensors whose sizes differ, with both sizes.
        advice: remedy to suggest.
    """

    def __init__(self, origin: str, missing: Iterable[str] = (), unknown: Iterable[str] = (), sizes: Iterable[str] = (), advice: str = ""):
        self.missing, self.unknown, self.sizes = list(missing), list(unknown), list(sizes)
        parts = (("missing", self.missing), ("unknown", self.unknown), ("of another size", self.sizes))
        details = "; ".join(
            f"{what}: {', '.join(names[:30])}{f' and {len(names) - 30} more' * (len(names) > 30)}" for what, names in parts if names
        )
        super().__init__(f"{origin}: {details}{advice and f'; {advice}'}")


class BadText(RegardError, ValueError):
    """A string that cannot be encoded as UTF-8."""


class RunExists(RegardError, FileExistsError):
    """The folder holds a run that would be overwritten."""


class RunInUse(RegardError, RuntimeError):
    """Another process writes to the run."""


class CannotSave(RegardError, OSError):
    """The disk is full, read-only or not writable."""


class OutOfMemory(RegardError, MemoryError):
    """A model or its training needs more memory than there is; the message names what would help."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory ran out: PyTorch's allocators raise RuntimeError, with these words.

    Args:
        error: error that was caught.
    """
    words = ("can't allocate memory", "not enough memory", "out of memory", "size calculation overflowed")
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)


class Diverged(RegardError, ArithmeticError):
    """Too many training steps in a row were skipped, because the loss or gradient was not finite or too large."""


class QueueFull(RegardError, RuntimeError):
    """The engine's request queue is full; try again later."""


class ChildFailed(RegardError, RuntimeError):
    """A measurement in a child process failed. `kind` is one of refused, memory, failed, died or time.

    Args:
        kind: refused, memory, failed, died or time.
        message: message of the child, or about it.
    """

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


class Interrupted(RegardError):
    """Training was stopped by a signal, after saving a checkpoint. `code` is the exit code for the process: 128 + its number.

    Args:
        number: number of the signal.
        where: end of the message: when it stopped, and what was saved.
    """

    def __init__(self, number: int, where: str):
        self.signal = signal.Signals(number)
        self.code = 128 + number
        super().__init__(f"stopped by {self.signal.name} {where}")

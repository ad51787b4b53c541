"""Every error regard raises on purpose. Each message says what was given, what was expected, and what to do.

RegardError
├── ShapeError          (ValueError)  tensors whose sizes do not fit together
├── DtypeError          (TypeError)   tensors of a wrong or mixed type
├── NotSupported        (ValueError)  the part cannot do what was asked; names one that can
│   ├── PatternNotSupported
│   ├── BiasNotSupported
│   ├── StateNotSupported
│   └── CaptureNotSupported
├── UnknownName         (LookupError) no such mechanism, model or recipe; names the nearest
├── BadConfig           (ValueError)  settings that make no sense, alone or together
├── BadPattern          (ValueError)  text that is not a pattern
├── BadFile             (ValueError)  a file that is not what it should be
│   ├── MissingFile     (FileNotFoundError too)
│   └── Misfit          tensors of a checkpoint that are missing, unknown or of another size
├── BadText             (ValueError)  a string that no file could hold
├── RunExists           (FileExistsError) the folder holds a run that would be overwritten
├── CannotSave          (OSError)     the disk is full, read-only or not ours
├── Diverged            (ArithmeticError) training that cannot go on
├── Busy                (RuntimeError) all places are taken, and enough are waiting
├── ChildFailed         (RuntimeError) a process that was started to measure something could not
└── Interrupted         training that was asked to stop, and has saved
"""

import difflib
import signal
from collections.abc import Iterable


class RegardError(Exception):
    """The root of the tree."""


class ShapeError(RegardError, ValueError):
    """Tensors whose sizes do not fit together."""


class DtypeError(RegardError, TypeError):
    """Tensors of a wrong or mixed type."""


class NotSupported(RegardError, ValueError):
    """A part was asked for what it cannot do."""


class PatternNotSupported(NotSupported):
    """The mechanism cannot be restricted to this pattern."""


class BiasNotSupported(NotSupported):
    """The mechanism has no scores to add a bias to."""


class StateNotSupported(NotSupported):
    """The mechanism cannot go step by step."""


class CaptureNotSupported(NotSupported):
    """The weights behind this call cannot be had."""


class UnknownName(RegardError, LookupError):
    """No such mechanism, model or recipe."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = list(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known: {', '.join(known)}"
        super().__init__(f"no {kind} is called {name!r}; {hint}")


class BadConfig(RegardError, ValueError):
    """Settings of a model that cannot be, or not together."""


class BadPattern(RegardError, ValueError):
    """Text that is not a pattern."""


class BadFile(RegardError, ValueError):
    """A file that is not what it should be."""


class MissingFile(BadFile, FileNotFoundError):
    """A file that is not there."""


class Misfit(BadFile):
    """The tensors of a checkpoint are not those of its model: every name is in `missing`, `unknown` or `sizes`."""

    def __init__(self, origin: str, missing: Iterable[str] = (), unknown: Iterable[str] = (), sizes: Iterable[str] = (), advice: str = ""):
        self.missing, self.unknown, self.sizes = list(missing), list(unknown), list(sizes)
        parts = (("missing", self.missing), ("unknown", self.unknown), ("of another size", self.sizes))
        said = "; ".join(
            f"{what}: {', '.join(names[:30])}{f' and {len(names) - 30} more' * (len(names) > 30)}" for what, names in parts if names
        )
        super().__init__(f"{origin}: {said}{advice and f'; {advice}'}")


class BadText(RegardError, ValueError):
    """A string that cannot be written as UTF-8."""


class RunExists(RegardError, FileExistsError):
    """The folder holds a run that would be overwritten."""


class CannotSave(RegardError, OSError):
    """The disk is full, read-only or not ours."""


class Diverged(RegardError, ArithmeticError):
    """Training that cannot go on."""


class Busy(RegardError, RuntimeError):
    """All places are taken, and as many are waiting as may."""


class ChildFailed(RegardError, RuntimeError):
    """A child process could not do what it was asked. `kind` says how: refused, memory, failed, died or time."""

    def __init__(self, kind: str, says: str):
        self.kind = kind
        super().__init__(says)


class Interrupted(RegardError):
    """Training that was asked to stop, and has saved. `code` is what the process should exit with: 130 or 143."""

    def __init__(self, number: int, where: str):
        self.signal = signal.Signals(number)
        self.code = 128 + number
        super().__init__(f"stopped by {self.signal.name} {where}")

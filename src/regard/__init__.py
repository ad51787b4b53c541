"""regard: every attention mechanism behind one contract.

Attention is a weighted average of values, with weights that depend on a query. Every mechanism has two methods, which agree:

    weights(q, k, pattern)       the definition: the attention weights of every query and key
    forward(q, k, v, pattern)    the weighted average, computed fast

    >>> import torch
    >>> from regard import SoftmaxAttention, causal, tokens, window
    >>> q, k, v = torch.randn(3, 2, 64, 4, 16)  # q, k and v: 2 sequences of 64 tokens, 4 heads of size 16
    >>> attention, pattern = SoftmaxAttention(), causal & (window(8) | tokens(0))
    >>> out = attention(q, k, v, pattern)
    >>> out.shape
    torch.Size([2, 64, 4, 16])
    >>> torch.allclose(out, torch.einsum("bhlm,bmhv->blhv", attention.weights(q, k, pattern), v), atol=1e-5)
    True

Letters at the end of a tensor's name are its axes, in order; one legend for the whole library:

    B  batch                    D  model width               F  feed-forward width
    L  query length             H  heads                     N  vocabulary or classes
    M  memory (key) length      K  key size per head         C  chunk
                                V  value size per head

So q_BLHK holds queries, weights_BHLM attention weights, x_BLD the activations between layers.
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any
from typing import TypeVar as _TypeVar

from . import _bound

if _TYPE_CHECKING:
    from collections.abc import Mapping as _Mapping
    from collections.abc import Sequence as _Sequence

    from ._public import *  # noqa: F403
    from .attention import *  # noqa: F403
    from .data import Tokenizer as _Tokenizer
    from .data import Tokenizers as _Tokenizers
    from .models import Model as _Model
    from .runs import Run as _Run

__version__ = "0.2.0"
_Thing = _TypeVar("_Thing")


def load_run(folder: _Path | str, *, config: "_Mapping[str, _Any] | None" = None, device: str = "cpu") -> "_Run[_Model]":
    """A run, or a transformers directory (config.json and safetensors) as one: model, processor, config, ready to use.

    Args:
        folder: run directory, or transformers directory.
        config: content of its config.json as `runs.read_json` returns it, if it has been read.
        device: device of the model: auto (a GPU, if there is one), cpu, cuda, cuda:1, mps.
    """
    from . import files, runs, tasks  # they take time to import

    files.check_name(folder)
    if config is None and (_Path(folder) / runs.CONFIG).is_file():
        config = runs.read_json(folder)
    if config is not None and "format_version" in config:
        return tasks.load_run(folder, config=config, device=device)
    from . import interop

    return interop.load_run(folder, config, device)


def load(folder: _Path | str, *, device: str = "cpu") -> "_Model":
    """The model of a run, or of a transformers directory, with its parameters, `tokenizer` and `labels`, ready to use.

    Args:
        folder: run directory, or transformers directory.
        device: device of the model: auto (a GPU, if there is one), cpu, cuda, cuda:1, mps.
    """
    return load_run(folder, device=device).model


def save(
    model: "_Model",
    folder: _Path | str,
    *,
    tokenizer: "_Tokenizer | _Tokenizers | None" = None,
    labels: "_Sequence[str] | None" = None,
    processor: "_Any" = None,
) -> _Path:
    """Write a model as a run, which every command and `load` take: one with swapped attention, or from a training loop of your own.

    Args:
        model: model to write.
        folder: run directory to create.
        tokenizer: tokenizer of the model; that of the run it is from if not given.
        labels: names of the classes; those of the run it is from if not given.
        processor: processor of a model that reads no text; that of the run it is from if not given.
    """
    from . import tasks

    return tasks.save_model(model, folder, tokenizer, labels, processor)


def register(thing: _Thing) -> _Thing:
    """Make a mechanism, model, task, recipe, pattern or checkpoint family known by its name; a decorator for classes: `registry`.

    Args:
        thing: Subclass of `Attention`, `Model`, `Task` or `Pattern`, or a `Recipe`, a pattern, a `Family`; its name must not be taken.
    """
    from . import registry

    return registry.register(thing)


def _load_plugins() -> None:
    from . import registry

    registry.load_plugins()


def _generate_ids(model: _Any, ids: _Any, eos_ids: _Any, options: "_Mapping[str, _Any]") -> list[list[int]]:
    from . import decode

    return decode.generate_ids(model, ids, decode.GenerationOptions(**options), eos_ids=eos_ids)


_bound.generate_ids = _generate_ids
_bound.load_plugins = _load_plugins


def __getattr__(name: str) -> _Any:
    """Modules when they are used, and all other public names from `_public`: `regard --version` need not wait for PyTorch."""
    if name.startswith("_") and name != "__all__":  # Python asks modules for names such as __path__
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _find_spec(f"{__name__}.{name}"):
        return _import_module(f".{name}", __name__)
    from . import _public

    globals().update({each: getattr(_public, each) for each in _public.__all__})
    globals()["__all__"] = ["__version__", "load", "load_run", "register", "save", *_public.__all__]
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})

"""Capture the attention weights of a model that runs at full speed: they are recomputed from the q and k of the fast path.

    >>> with capture(model, layers="blocks.*", heads=[0, 3], rows=-1) as maps:
    ...     model(x)
    >>> maps.save_png("look.png")

A fused kernel never forms the weights; other libraries give it up when weights are requested. Here an observer of each mechanism
(`Attention.observe`) computes the selected rows and heads after the call, a few rows at a time. The model's outputs, gradients and random
numbers are bit for bit the same. For layers that mix tokens without attention, the mixing matrix is recorded as "input-independent".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from ..attention import Attention
from ..errors import CaptureNotSupported, DtypeError, ShapeError
from ..layers import Mixer
from ._observe import ModuleRecorder, attention_modules, observe
from ._recorder import Recorder, layer_path
from ._select import Indices, Layers, layer_filter
from .maps import Maps

CHUNK = 64 * 2**20  # bytes of working memory, besides q, k and the maps
LIMIT = 2 * 2**30  # bytes of all maps together


@contextmanager
def capture(
    model: nn.Module,
    layers: Layers = None,
    heads: Indices = None,
    rows: Indices = None,
    tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    chunk: int = CHUNK,
    limit: int = LIMIT,
) -> Iterator[Maps]:
    """Record the attention weights of every call inside the `with` in `maps`, on the CPU.

    Weights are those before dropout. A mechanism whose rows depend on each other temporarily forms the whole matrix. Random mechanisms
    repeat the draws of the call, and their generators continue unchanged. Inside the `with`, compiled models run eagerly, because compiled
    code would bypass the hooks. Recomputation by gradient checkpointing is not recorded twice.

    A model without our mechanisms, such as one of transformers, is observed from outside: see `_observe`. Layers whose weights cannot be
    seen that way are refused by name; layers without softmax (linear attention, say) are left out unless `layers` chooses them.

    Args:
        model: any module that contains attention.
        layers: module paths (or prefixes), globs, indices in order of first call, or a predicate on paths; None: all layers.
        heads: head indices, negative ones from the end; None: all heads.
        rows: query indices of each call: an index, several, or a slice. `rows=-1` is the newest query; None: all queries.
        tokens: labels of the positions, for all batch rows or for each; maps of that length are labelled with them.
        dtype: dtype of the recorded maps: float32, float16 or float64.
        chunk: bytes of working memory. A single row that needs more is still computed.
        limit: bytes of all maps together; a capture that exceeds it is refused with advice on what to narrow.
    """
    if not isinstance(model, nn.Module):
        raise CaptureNotSupported(
            f"capture takes the model, a module that contains attention, got {type(model).__name__}; `with capture(model) as maps: model(x)`"
        )
    if dtype not in (torch.float32, torch.float16, torch.float64):
        raise DtypeError(f"dtype={dtype}: maps are recorded as float32, float16 or float64")
    known = dict(_attentions(model))
    modules = {} if known else attention_modules(model)
    if not known and not modules:
        raise CaptureNotSupported(f"{type(model).__name__} holds no attention layer and no Mixer, so there are no weights to capture")
    settings = (layer_filter(layers, list(known or modules)), heads, rows, tokens, dtype, chunk, limit)
    recorder = Recorder(known, *settings) if known else ModuleRecorder(modules, layers is not None, *settings)
    if known:
        inside = {id(child): part for part in model.modules() for child in part.children()}
        recorder.parents = {name: inside[id(module)] for name, module in known.items() if id(module) in inside}
    with ExitStack() as undo:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import takes seconds
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        undo.callback(model.register_forward_pre_hook(recorder.begin_run).remove)
        if isinstance(recorder, ModuleRecorder):
            undo.enter_context(observe(model, recorder))
        for name, module in known.items():
            undo.callback(module.register_forward_pre_hook(recorder.before(name), with_kwargs=True).remove)
            if isinstance(module, Attention):
                undo.enter_context(module.observe(recorder.after(name)))
            else:
                undo.callback(module.register_forward_hook(recorder.after_mixer(name), with_kwargs=True).remove)
        yield recorder.maps
    if tokens is not None and recorder.maps.all and not recorder.labelled:
        sizes = sorted({(m.queries, m.keys) for m in recorder.maps.all})
        raise ShapeError(f"tokens= has {recorder.longest} labels, but no map has as many queries or keys; (queries, keys) are {sizes}")


def _attentions(model: nn.Module) -> Iterator[tuple[str, Attention | Mixer]]:
    """Mechanisms and mixers by path, except those inside another mechanism, which represents them."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, Attention | Mixer) and id(module) not in inside:
            if isinstance(module, Attention):
                inside |= {id(part) for part in module.modules()}
            yield layer_path(name, module), module

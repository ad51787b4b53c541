"""Attention weights of models that are not ours, such as those of transformers, while they run as they always do.

Attention modules are found by the names of their classes, and each is watched for the time of its own calls: a `TorchFunctionMode`, which
belongs to one thread and is not registered anywhere, sees the arguments of `scaled_dot_product_attention`, or the softmax that the model
multiplies by its values. The rest of the model runs as if nothing was there. A module whose weights are not seen that way is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import CaptureNotSupported
from ._recorder import COPIES, Recorder, in_backward, layer_path, rows_sum_to_one
from ._select import select
from ._sources import Formed, Fused, of_function, of_module
from .map import Map

NAMED = re.compile(r"attention|attn|mha|mla", re.IGNORECASE)
PARTS = re.compile(r"(Projection|Output|Norm|Embeddings?)$")  # named after the attention that they serve
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "einsum"})
# after softmax: what leaves the weights what they are. Of dropout and casts, the weights before it are recorded
KEEPING = frozenset({"dropout", "to", "type", "type_as", "float", "half", "bfloat16", "double"})
CHANGING = frozenset(
    {"__getitem__", "mul", "masked_fill", "nan_to_num", "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"}
    | {"transpose", "permute", "contiguous", "clone", "detach"}
)
FUSED_ELSEWHERE = ("flash", "flex_attention", "paged|", "/")  # names of attn_implementation whose kernels PyTorch does not show


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention: those named after it that hold no other one."""
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    named = {name for name, kind in kinds.items() if NAMED.search(kind) and not PARTS.search(kind)}
    outer = {name[:end] for name in named for end in (0, *(dot.start() for dot in re.finditer(r"\.", name))) if name}
    return {layer_path(name, module): module for name, module in model.named_modules() if name in named - outer}


@contextmanager
def observe(model: nn.Module, recorder: ModuleRecorder) -> Iterator[None]:
    """Watch the attention modules of a model; afterwards everything is as it was."""
    with ExitStack() as undo:
        blocks = _blocks(model)
        for name, module in recorder.modules.items():
            if module in blocks:
                undo.callback(blocks[module].register_forward_pre_hook(recorder.enter_block(name), with_kwargs=True).remove)
            undo.callback(_replace_forward(module, recorder.watch(name)))
        yield
    recorder.check_any()


class ModuleRecorder(Recorder):
    """Records what modules that are not ours compute."""

    def __init__(self, modules: dict[str, nn.Module], chosen: bool, *settings: Any):
        super().__init__({}, *settings)
        self.modules, self.chosen = modules, chosen  # chosen: by layers=
        self.skipped: dict[str, CaptureNotSupported] = {}
        self.maps.idle = tuple(modules)
        self.block_shapes: dict[str, torch.Size] = {}

    def enter_block(self, name: str) -> Callable[..., None]:
        def remember(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            x = _first_tensor(args, kwargs)
            self.block_shapes[name] = torch.Size() if x is None else x.shape

        return remember

    def watch(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        module = self.modules[name]

        def watched(forward: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(forward)
            def observed(*args: Any, **kwargs: Any) -> Any:
                if in_backward() or not self.wanted(name, self.order.setdefault(name, len(self.order))):
                    return forward(*args, **kwargs)
                call = _Call(self, name, module, args, kwargs)
                if isinstance(module, nn.MultiheadAttention):  # runs another kernel under a mode, so it is left alone
                    out = forward(*args, **kwargs)
                    call.record(lambda: of_module(module, _arguments(nn.MultiheadAttention.forward, (module, *args), kwargs)))
                    return out
                with call:
                    out = forward(*args, **kwargs)
                call.finish()
                return out

            return observed

        return watched

    def skip(self, name: str, why: CaptureNotSupported) -> None:
        """Leave out a layer without weights, such as linear attention between other layers, unless it was chosen."""
        if self.chosen:
            raise why
        self.skipped.setdefault(name, why)
        self.maps.idle = tuple(other for other in self.maps.idle if other != name)

    def check_any(self) -> None:
        """Refuse a model in which every layer was skipped."""
        if self.skipped and not self.maps.all:
            raise next(iter(self.skipped.values()))

    @torch.no_grad()
    def add(self, name: str, source: Fused | Formed, before: int, cache: Any, grows: bool) -> None:
        """One map; `before` counts the queries of earlier calls with this cache, to which keys are added if it `grows`."""
        B, H, L, M = source.shape
        columns = range(M)
        if grows:  # a cache of fixed size has empty slots at the end; one of a sliding window has lost keys at the start
            columns = range(max(before + L - M, 0), before + L)
        heads, rows = select(self.heads, H, "heads", name), select(self.rows, L, "rows", name)
        self._check_limit(name, (B, len(heads), len(rows), len(columns)))
        with torch.autocast(source.device.type, enabled=False):
            chosen = source.choose(heads, len(columns))
            step = max(1, self.chunk // max(COPIES * B * len(heads) * M * max(source.dtype.itemsize, 4), 1))
            weights_BHLM = torch.empty(B, len(heads), len(rows), len(columns), dtype=self.dtype)
            for first in range(0, len(rows), step):
                weights_BHLM[:, :, first : first + step] = chosen.rows(torch.tensor(rows[first : first + step], device=source.device))
        number = self.calls[name] = self.calls.get(name, -1) + 1
        positions = tuple(before + row for row in rows)
        self.maps.all.append(
            Map(
                layer=name,
                mechanism="softmax",
                call=number,
                run=max(self.run, 0),
                heads=heads,
                rows=positions,
                columns=tuple(columns),
                queries=before + L,
                weights_BHLM=weights_BHLM,
                normalised=rows_sum_to_one(weights_BHLM, source.dtype),
                pattern=source.pattern,
                stream=None if cache is None else self._stream(cache),
                query_labels=self._labels(positions, before + L, cache is not None),
                key_labels=self._labels(tuple(columns), columns.stop, grows),
            )
        )


class _Call(TorchFunctionMode):
    """One call of an attention module, which sees every function of PyTorch that it uses."""

    def __init__(self, recorder: ModuleRecorder, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]):
        super().__init__()
        implementation = str(getattr(getattr(module, "config", None), "_attn_implementation", None))
        if any(word in implementation for word in FUSED_ELSEWHERE):
            raise CaptureNotSupported(
                f"{name}: the attention implementation {implementation!r} does not show its queries and keys; "
                'model.set_attn_implementation("sdpa") does'
            )
        self.recorder, self.name, self.module = recorder, name, module
        self.x = _first_tensor(args, kwargs)
        self.cache = next((x for x in (*args, *kwargs.values()) if hasattr(x, "get_seq_length") and hasattr(x, "update")), None)
        self.before = self._cached()
        self.weights: Any = WeakTensorKeyDictionary()  # tensor → the weights that it holds
        self.seen: Fused | Formed | None = None
        self.softmax = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is nn.functional.scaled_dot_product_attention:
            self.record(lambda: Fused.from_call(*args, **(kwargs or {})))
        elif func is nn.functional.multi_head_attention_forward:
            self.record(lambda: of_function(**_arguments(func, args, kwargs or {})))
        elif isinstance(out, Tensor):
            self._follow(getattr(func, "__name__", ""), args, kwargs or {}, out)
        return out

    def _follow(self, name: str, args: Any, kwargs: dict[str, Any], out: Tensor) -> None:
        """Follow a softmax over keys to its product with the values."""
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if out.dim() > 2 and dim in (-1, out.dim() - 1):
                self.weights[out] = out
                self.softmax = True
            return
        if name in PRODUCTS:
            tensors = args[1:] if name == "einsum" else args[:1]
            tensors = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
            found = [self.weights[x] for x in tensors if isinstance(x, Tensor) and x in self.weights]
            if found:
                self.record(lambda: Formed(self._with_heads(found[0].detach())))
        elif args and isinstance(args[0], Tensor) and args[0] in self.weights:
            was = self.weights[args[0]]
            if name in KEEPING or (name in CHANGING and was.dim() == 4 > out.dim()):
                self.weights[out] = was
            elif name in CHANGING:
                self.weights[out] = out

    def record(self, source: Callable[[], Fused | Formed]) -> None:
        try:
            with torch.no_grad():
                found = source()
            if self.seen is not None and found.equals(self.seen):  # for other values
                return
            self._check(found)
        except CaptureNotSupported as why:
            raise self._refused(str(why)) from None
        self.seen = found
        self.recorder.add(self.name, found, *self._position(found.shape[2]))

    def finish(self) -> None:
        if self.seen is None and self.softmax:
            raise self._refused("its softmax does not multiply the values as one matrix")
        elif self.seen is None:
            self.recorder.skip(self.name, self._refused("it uses neither scaled_dot_product_attention nor softmax"))

    def _check(self, found: Fused | Formed) -> None:
        """Rows must be positions of the sequence that the layer reads: not windows, blocks or landmarks."""
        if self.seen is not None:
            raise CaptureNotSupported("it uses several matrices of weights")
        if len(found.shape) != 4:
            raise CaptureNotSupported(f"its weights are {found.shape}, expected (batch, heads, queries, keys)")
        if isinstance(self.module, nn.MultiheadAttention):
            return
        (B, _, L, _), x, block = found.shape, self.x, self.recorder.block_shapes.get(self.name, torch.Size())
        x_shape = torch.Size() if x is None else x.shape
        batch_at = int(len(x_shape) == 3 and x_shape[0] != B == x_shape[1])  # (length, batch, width) is found too
        if len(x_shape) == 3 and (x_shape[batch_at] != B or (isinstance(found, Formed) and x_shape[1 - batch_at] != L)):
            raise CaptureNotSupported(f"weights for {B} × {L} queries (batch × length), of an input of {x_shape[0]} × {x_shape[1]} tokens")
        if not _fits(block, batch_at, B, L):
            raise CaptureNotSupported(f"it attends within windows: {B} × {L} tokens at a time, of an input of {tuple(block)}")

    def _with_heads(self, weights: Tensor) -> Tensor:
        """(batch · heads, queries, keys) with heads apart."""
        heads = next((n for n in (getattr(self.module, name, None) for name in HEADS) if isinstance(n, int)), None)
        return weights.unflatten(0, (-1, heads)) if weights.dim() == 3 and heads and weights.shape[0] % heads == 0 else weights

    def _cached(self) -> int:
        if self.cache is None:
            return 0
        layer = getattr(self.module, "layer_idx", None)
        try:
            return int(self.cache.get_seq_length(*(() if layer is None else (layer,))))
        except ValueError:  # a layer without keys
            return 0

    def _position(self, queries: int) -> tuple[int, Any, bool]:
        """Return the number of earlier queries, their cache, and whether it holds their keys too: not in cross-attention."""
        if self.cache is None:
            return 0, None, False
        now, total = self._cached(), int(self.cache.get_seq_length())
        if now - self.before == queries:
            return self.before, self.cache, True
        if total < queries:  # not used
            return 0, None, False
        return total - queries, self.cache, now == 0  # if nothing is there, the keys are those of another layer

    def _refused(self, why: str) -> CaptureNotSupported:
        return CaptureNotSupported(f"{self.name}: {type(self.module).__name__} has no weights to capture: {why}; leave it out with layers=")


def _first_tensor(args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """The input of a module: hidden states, or whatever comes first."""
    return next((x for x in (kwargs.get("hidden_states"), *args, *kwargs.values()) if isinstance(x, Tensor)), None)


def _fits(shape: torch.Size, batch_at: int, batch: int, length: int) -> bool:
    """Return whether a layer's input has this many tokens: (length, width), (batch, length, width), or on a grid with the width first or last."""
    if len(shape) == 2:
        return shape[0] == batch * length
    if len(shape) == 3:
        return (shape[batch_at], shape[1 - batch_at]) == (batch, length)
    if len(shape) == 4:  # (batch, length, streams, width), too
        return shape[0] == batch and length in (shape[1], shape[1] * shape[2], shape[2] * shape[3])
    return True


def _arguments(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _blocks(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """The layer that each module is part of: the nearest member of a list of layers."""
    lists = (part for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential))  # outer ones first
    return {part: layer for members in lists for layer in members for part in layer.modules()}


def _replace_forward(module: nn.Module, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Change `forward` of this one module; returns what restores it. A hook would not run after KeyboardInterrupt, a `with` does."""
    own, has_own = module.__dict__.get("forward"), "forward" in module.__dict__
    module.__dict__["forward"] = change(module.forward)

    def restore() -> None:
        if has_own:
            module.__dict__["forward"] = own
        else:
            del module.__dict__["forward"]

    return restore

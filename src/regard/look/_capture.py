"""Capture the attention weights of a model that runs at full speed: they are recomputed from the q and k of the fast path.

    >>> with capture(model, layers="blocks.*", heads=[0, 3], rows=-1) as maps:
    ...     model(x)
    >>> maps.save_png("look.png")

A fused kernel never forms the weights; other libraries give it up when weights are requested. Here an observer of each mechanism
(`Attention.observe`) computes the selected rows and heads after the call, a few rows at a time. The model's outputs, gradients and random
numbers are bit for bit the same. For layers that mix tokens without attention, the mixing matrix is recorded as "input-independent".
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..attention import Attention, Observation, State
from ..errors import CaptureNotSupported, DtypeError, NotSupported, ShapeError, StateNotSupported
from ..layers import Mixer
from ..layers.reversible import RngSnapshot
from ..patterns import Pattern
from ._select import Indices, Layers, as_tuple, layer_filter, select
from .inputs import Inputs, defer_above
from .map import Map
from .maps import Maps
from .token_labels import Labels, lines

CHUNK = 64 * 2**20  # bytes of working memory, besides q, k and the maps
LIMIT = 2 * 2**30  # bytes of all maps together
COPIES = 6  # of a chunk in memory at once: scores, exponentials, quotients, masks; measured for softmax: 4.5


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

    layers: module paths (or prefixes), globs, indices in order of first call, or a predicate on paths; None: all layers.
    heads:  head indices, negative ones from the end; None: all heads.
    rows:   query indices of each call: an index, several, or a slice. `rows=-1` is the newest query; None: all queries.
    tokens: labels of the positions, for all batch rows or for each; maps of that length are labelled with them.
    dtype:  of the recorded maps: float32, float16 or float64.
    chunk:  bytes of working memory. A single row that needs more is still computed.
    limit:  bytes of all maps together; a capture that exceeds it is refused with advice on what to narrow.

    Weights are those before dropout. A mechanism whose rows depend on each other temporarily forms the whole matrix. Random mechanisms
    repeat the draws of the call, and their generators continue unchanged. Inside the `with`, compiled models run eagerly, because compiled
    code would bypass the hooks. Recomputation by gradient checkpointing is not recorded twice.

    A model without our mechanisms, such as one of transformers, is observed from outside: see `_observe`. Layers whose weights cannot be
    seen that way are refused by name; layers without softmax (linear attention, say) are left out unless `layers` chooses them.
    """
    if dtype not in (torch.float32, torch.float16, torch.float64):
        raise DtypeError(f"dtype={dtype}: maps are recorded as float32, float16 or float64")
    from ._observe import ModuleRecorder, attention_modules, observe  # which imports this module

    known = dict(_attentions(model))
    modules = {} if known else attention_modules(model)
    if not known and not modules:
        raise CaptureNotSupported(f"{type(model).__name__} holds no attention layer and no Mixer, so there are no weights to capture")
    settings = (layer_filter(layers, list(known or modules)), heads, rows, tokens, dtype, chunk, limit)
    recorder = _Recorder(known, *settings) if known else ModuleRecorder(modules, layers is not None, *settings)
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


class _Recorder:
    """The settings of one capture and the maps recorded so far."""

    def __init__(
        self,
        known: dict[str, Attention | Mixer],
        wanted: Callable[[str, int], bool],
        heads: Indices,
        rows: Indices,
        tokens: Sequence[str] | Sequence[Sequence[str]] | None,
        dtype: torch.dtype,
        chunk: int,
        limit: int,
    ):
        self.known, self.wanted, self.tokens = known, wanted, tokens
        self.parents: dict[str, nn.Module] = {}  # of the mechanisms
        self.heads, self.rows = as_tuple(heads), as_tuple(rows)
        self.dtype, self.chunk, self.limit = dtype, chunk, limit
        self.maps = Maps(idle=known)
        self.longest = 0
        if tokens is not None:
            self.longest = len(tokens) if all(isinstance(word, str) for word in tokens) else max(map(len, tokens), default=0)
        self.labelled = False
        self.defer_above = defer_above.get()
        self.value_norms: dict[str, Tensor] = {}
        self.run = -1
        self.order: dict[str, int] = {}  # of first call
        self.calls: dict[str, int] = {}
        self.rng: dict[str, RngSnapshot] = {}
        self.streams: list[ref[State]] = []  # weak: a capture does not keep caches alive

    def begin_run(self, *_: Any) -> None:
        if not _in_backward():
            self.run += 1

    def before(self, name: str) -> Callable[..., None]:
        def prepare(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if _in_backward() or not self.wanted(name, self.order.setdefault(name, len(self.order))):
                return
            layer = self.known[name]
            if isinstance(layer, Mixer) and type(layer).weights is Mixer.weights:
                raise self._no_weights(name, layer)
            state = _arguments(layer, args, kwargs).get("state")
            if isinstance(layer, Attention) and state is not None:
                try:
                    state.keep_keys()
                except StateNotSupported as error:
                    raise CaptureNotSupported(
                        f"{name}: the keys of earlier steps are gone, so this step has no weights to capture: {error}"
                    ) from error
            self.rng[name] = RngSnapshot(layer)
            if self.defer_above is not None and isinstance(layer, Attention):
                self.value_norms[name] = self._value_norms(name, _arguments(layer, args, kwargs)["v_BMHV"])

        prepare._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled inside the capture: break, do not trace
        return prepare

    def after(self, name: str) -> Callable[[Observation], None]:
        def record(observed: Observation) -> None:
            if _in_backward() or not self.wanted(name, self.order[name]):
                return
            rng = self.rng.pop(name)
            with rng.kept(), torch.no_grad(), torch.autocast(observed.q_BLHK.device.type, enabled=False):
                self.maps.all.append(self._map(name, observed, rng))

        record._torchdynamo_disable = True  # type: ignore[attr-defined]
        return record

    def after_mixer(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
            if not _in_backward() and self.wanted(name, self.order[name]):
                mixer, arguments = self.known[name], _arguments(module, args, kwargs)
                assert isinstance(mixer, Mixer)
                self.rng.pop(name)
                self.maps.all.append(self._mixer_map(name, mixer, arguments["x_BLD"], arguments["pattern"]))

        record._torchdynamo_disable = True  # type: ignore[attr-defined]
        return record

    def _map(self, name: str, observed: Observation, rng: RngSnapshot) -> Map:
        call, cache = observed.call, observed.call.cache
        if call.state is not None and call.state.grows:
            raise CaptureNotSupported(
                f"{name}: {type(call.state).__name__} does not keep its keys one by one, so a step has no weights to capture. "
                "Run the whole sequence in one call without a state, or leave this layer out with layers="
            )
        L = call.queries
        before = 0 if cache is None else cache.length - L
        columns = tuple(range(call.keys)) if cache is None else tuple(cache.columns().tolist())
        heads = select(self.heads, observed.q_BLHK.shape[2], "heads", name)
        rows = select(self.rows, L, "rows", name)
        inputs, deferred = self._inputs(name, observed, rows, rng), False
        if inputs is not None and self.defer_above is not None and observed.rows_cheap:
            deferred = len(observed.q_BLHK) * len(heads) * len(rows) * call.keys > self.defer_above
        if deferred:
            assert inputs is not None
            ends = torch.cat([inputs.weights(n, n + 1, heads) for n in {0, len(rows) - 1}], 2)
            normalised = _normalised(ends, observed.q_BLHK.dtype)
            weights_BHLM = torch.full((), torch.nan).expand(len(observed.q_BLHK), len(heads), len(rows), call.keys)
        else:
            weights_BHLM = self._weights(name, observed, heads, rows, rng)
            normalised = _normalised(weights_BHLM, observed.q_BLHK.dtype)
        return self._new_map(
            name,
            observed.attention.facts.name,
            heads=heads,
            rows=tuple(before + row for row in rows),
            columns=columns,
            queries=before + L,
            weights_BHLM=weights_BHLM,
            normalised=normalised,
            pattern=str(observed.pattern),
            inputs=inputs,
            deferred=deferred,
            stream=None if cache is None else self._stream(cache),
        )

    def _inputs(self, name: str, observed: Observation, rows: tuple[int, ...], rng: RngSnapshot) -> Inputs | None:
        if self.defer_above is None or observed.call.cache is not None:  # a cache moves on, so its steps are computed now
            return None
        inputs = Inputs(observed, rng, rows, self.value_norms.pop(name, None))
        if self.maps.nbytes + inputs.nbytes > self.limit:
            raise CaptureNotSupported(
                f"{name}: its queries and keys take {_mib(inputs.nbytes)}, besides {_mib(self.maps.nbytes)} already recorded: more than the "
                f"limit of {_mib(self.limit)}; use a shorter text, or fewer layers"
            )
        return inputs

    @torch.no_grad()
    def _value_norms(self, name: str, v_BMHV: Tensor) -> Tensor:
        """value_norms_BHM: how long each value is after the output projection, if there is one; else as it is."""
        parent = self.parents.get(name)
        groups, out = v_BMHV.shape[2], getattr(parent, "out", None)
        heads = getattr(parent, "heads", groups)
        v_BHMV = v_BMHV.detach().float().transpose(1, 2)
        if not isinstance(out, nn.Linear) or out.in_features != heads * v_BHMV.shape[-1] or heads % groups:
            return v_BHMV.norm(dim=-1)
        parts_VD = out.weight.float().T.chunk(heads)  # head by head: all together are as large as the layer's input times heads
        return torch.stack([(v_BHMV[:, h * groups // heads] @ part_VD).norm(dim=-1) for h, part_VD in enumerate(parts_VD)], 1)

    @torch.no_grad()
    def _mixer_map(self, name: str, mixer: Mixer, x_BLD: Tensor, pattern: Pattern) -> Map:
        """The matrix that a layer applies to any input of this length."""
        B, L = x_BLD.shape[:2]
        whole_BHLM = mixer.weights(L, pattern)
        heads, rows = select(self.heads, whole_BHLM.shape[1], "heads", name), select(self.rows, L, "rows", name)
        self._check_limit(name, (B, len(heads), len(rows), L))
        weights_BHLM = whole_BHLM[:, list(heads)][:, :, list(rows)].to("cpu", self.dtype).expand(B, -1, -1, -1).contiguous()
        return self._new_map(
            name,
            f"{mixer.name} (input-independent)",
            heads=heads,
            rows=rows,
            columns=tuple(range(L)),
            queries=L,
            weights_BHLM=weights_BHLM,
            normalised=_normalised(weights_BHLM, x_BLD.dtype),
            pattern=str(pattern),
        )

    def _new_map(self, name: str, mechanism: str, **about: Any) -> Map:
        """The map of a layer's next call, labelled if labels were given."""
        self.calls[name] = self.calls.get(name, -1) + 1
        m = Map(layer=name, mechanism=mechanism, call=self.calls[name], run=max(self.run, 0), **about)
        growing = m.stream is not None
        return replace(m, query_labels=self._labels(m.rows, m.queries, growing), key_labels=self._labels(m.columns, m.keys, growing))

    def _weights(self, name: str, observed: Observation, heads: tuple[int, ...], rows: tuple[int, ...], rng: RngSnapshot) -> Tensor:
        (B, L, H, _), M = observed.q_BLHK.shape, observed.call.keys
        self._check_limit(name, (B, len(heads), len(rows), M))
        row_bytes = max(COPIES * B * H * M * observed.q_BLHK.element_size(), 1)
        if not observed.rows_cheap and row_bytes * L > self.limit:
            raise CaptureNotSupported(
                f"{name}: {type(observed.attention).__name__} computes single rows only from its whole {L} × {M} matrix, which takes "
                f"{_mib(row_bytes * L)}, more than the limit of {_mib(self.limit)}; use a shorter sequence, a smaller batch or a higher limit="
            )
        step = max(1, self.chunk // row_bytes if observed.rows_cheap else len(rows))
        kept_BHLM = torch.empty(B, len(heads), len(rows), M, dtype=self.dtype)
        chosen = torch.tensor(heads, device=observed.q_BLHK.device)
        for first in range(0, len(rows), step):
            rng.restore()
            here = torch.tensor(rows[first : first + step], device=observed.q_BLHK.device)
            try:
                part_BHLM = observed.weights(here)
            except NotImplementedError as missing:
                raise self._no_weights(name, observed.attention) from missing
            except (NotSupported, ShapeError) as refused:
                if observed.call.cache is None:
                    raise
                raise CaptureNotSupported(f"{name}: this step has no weights to capture: {refused}") from refused
            if part_BHLM.shape != (B, H, len(here), M):
                raise CaptureNotSupported(f"{name}: got weights of shape {tuple(part_BHLM.shape)}, expected {(B, H, len(here), M)}")
            kept_BHLM[:, :, first : first + step] = part_BHLM if len(heads) == H else part_BHLM[:, chosen]
        return kept_BHLM

    def _check_limit(self, name: str, shape: tuple[int, int, int, int]) -> None:
        held, requested = self.maps.nbytes, shape[0] * shape[1] * shape[2] * shape[3] * self.dtype.itemsize
        if held + requested > self.limit:
            B, H, L, M = shape
            raise CaptureNotSupported(
                f"{name}: {B} batch rows × {H} heads × {L} rows × {M} keys take {_mib(requested)}, besides {_mib(held)} already recorded of "
                f"{len(self.maps.all)} calls: more than the limit of {_mib(self.limit)}. Narrow layers=, heads= or rows=, or raise limit="
            )

    def _labels(self, positions: tuple[int, ...], size: int, growing: bool) -> Labels:
        """The user's labels where they fit: one per position or, in a stream, at least one per position so far."""
        if self.tokens is None or not (self.longest == size or (growing and self.longest > size)):
            return ()
        self.labelled = True
        return lines(self.tokens, positions, self.longest, "tokens=")

    def _stream(self, state: State) -> int:
        for number, known in enumerate(self.streams):
            if known() is state:
                return number
        self.streams.append(ref(state))
        return len(self.streams) - 1

    def _no_weights(self, name: str, layer: nn.Module) -> CaptureNotSupported:
        others = [path for path, module in self.known.items() if _has_weights(module)]
        why = " (it mixes tokens, but not by one matrix)" if isinstance(layer, Mixer) else ""
        return CaptureNotSupported(
            f"{name}: {type(layer).__name__} has no weights to capture{why}; leave it out with layers=. "
            + (f"These have: {', '.join(others)}" if others else "No layer of this model has")
        )


def _arguments(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _in_backward() -> bool:
    """Whether a backward pass is running: gradient checkpointing then recomputes calls already recorded."""
    return bool(torch._C._current_graph_task_id() != -1)


def _attentions(model: nn.Module) -> Iterator[tuple[str, Attention | Mixer]]:
    """Mechanisms and mixers by path, except those inside another mechanism, which represents them."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, Attention | Mixer) and id(module) not in inside:
            if isinstance(module, Attention):
                inside |= {id(part) for part in module.modules()}
            yield _path(name, module), module


def _has_weights(module: Attention | Mixer) -> bool:
    if isinstance(module, Mixer):
        return type(module).weights is not Mixer.weights
    return type(module)._weights is not Attention._weights


def _path(name: str, module: nn.Module) -> str:
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod") or type(module).__name__  # names do not change with torch.compile


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _normalised(weights_BHLM: Tensor, computed: torch.dtype) -> bool:
    """Whether rows sum to one, by the numbers and not the facts: a learned sink takes weight from normalised mechanisms."""
    if not weights_BHLM.numel():
        return True
    slack = 64 * max(torch.finfo(computed).eps, torch.finfo(weights_BHLM.dtype).eps, 1e-7)
    sums, (low, high) = weights_BHLM.sum(-1, dtype=torch.float32), weights_BHLM.aminmax(dim=-1)  # nothing here is as large as the weights
    return bool((((sums - 1).abs() < slack) | ((low == 0) & (high == 0))).all())

"""Recorder of a capture: after each call of a mechanism it computes the chosen rows and heads of its weights, a few rows at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..attention import Attention, Observation, State
from ..errors import CaptureNotSupported, NotSupported, ShapeError, StateNotSupported
from ..layers import Mixer
from ..layers.reversible import RngSnapshot
from ..patterns import Pattern
from ._select import Indices, as_tuple, select
from .inputs import Inputs, defer_above
from .interventions import ablated
from .map import Map
from .maps import Maps
from .token_labels import Labels, lines

COPIES = 6  # of a chunk in memory at once: scores, exponentials, quotients, masks; measured for softmax: 4.5


class Recorder:
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
        if not in_backward():
            self.run += 1

    def before(self, name: str) -> Callable[..., None]:
        def prepare(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if in_backward() or not self.wanted(name, self.order.setdefault(name, len(self.order))):
                return
            layer = self.known[name]
            if isinstance(layer, Mixer) and type(layer).weights is Mixer.weights:
                raise self._no_weights(name, layer)
            state = call_arguments(layer, args, kwargs).get("state")
            if isinstance(layer, Attention) and state is not None:
                try:
                    state.keep_keys()
                except StateNotSupported as error:
                    raise CaptureNotSupported(
                        f"{name}: the keys of earlier steps are gone, so this step has no weights to capture: {error}"
                    ) from error
            self.rng[name] = RngSnapshot(layer)
            if self.defer_above is not None and isinstance(layer, Attention):
                self.value_norms[name] = self._value_norms(name, call_arguments(layer, args, kwargs)["v_BMHV"])

        prepare._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled inside the capture: break, do not trace
        return prepare

    def after(self, name: str) -> Callable[[Observation], None]:
        def record(observed: Observation) -> None:
            if in_backward() or not self.wanted(name, self.order[name]):
                return
            rng = self.rng.pop(name)
            with rng.kept(), torch.no_grad(), torch.autocast(observed.q_BLHK.device.type, enabled=False):
                self.maps.all.append(self._map(name, ablated(observed), rng))

        record._torchdynamo_disable = True  # type: ignore[attr-defined]
        return record

    def after_mixer(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
            if not in_backward() and self.wanted(name, self.order[name]):
                mixer, arguments = self.known[name], call_arguments(module, args, kwargs)
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
            normalised = rows_sum_to_one(ends, observed.q_BLHK.dtype)
            weights_BHLM = torch.full((), torch.nan).expand(len(observed.q_BLHK), len(heads), len(rows), call.keys)
        else:
            weights_BHLM = self._weights(name, observed, heads, rows, rng)
            normalised = rows_sum_to_one(weights_BHLM, observed.q_BLHK.dtype)
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
            normalised=rows_sum_to_one(weights_BHLM, x_BLD.dtype),
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


def call_arguments(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def in_backward() -> bool:
    """Return whether a backward pass is running: gradient checkpointing then recomputes calls already recorded."""
    return bool(torch._C._current_graph_task_id() != -1)


def _has_weights(module: Attention | Mixer) -> bool:
    if isinstance(module, Mixer):
        return type(module).weights is not Mixer.weights
    return type(module)._weights is not Attention._weights


def layer_path(name: str, module: nn.Module) -> str:
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod") or type(module).__name__  # names do not change with torch.compile


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def rows_sum_to_one(weights_BHLM: Tensor, computed: torch.dtype) -> bool:
    """Return whether rows sum to one, by the numbers and not the facts: a learned sink takes weight from normalised mechanisms."""
    if not weights_BHLM.numel():
        return True
    slack = 64 * max(torch.finfo(computed).eps, torch.finfo(weights_BHLM.dtype).eps, 1e-7)
    sums, (low, high) = weights_BHLM.sum(-1, dtype=torch.float32), weights_BHLM.aminmax(dim=-1)  # nothing here is as large as the weights
    return bool((((sums - 1).abs() < slack) | ((low == 0) & (high == 0))).all())

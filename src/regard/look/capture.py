"""See what a model looks at while it runs as fast as ever: weights recomputed from the q and k that the fast path used.

    >>> with capture(model, layers="blocks.*", heads=[0, 3], rows=-1) as maps:
    ...     model(x)
    >>> maps.save_png("look.png")

A fused kernel never forms the weights, and asking it for them elsewhere means giving it up. Here a hook stands behind each
mechanism; after the call it asks `attention.weights_of` for the rows and heads wanted, a few rows at a time. Outputs, gradients and
random numbers of the model are bit for bit what they are without. Of a layer that mixes tokens without attention, the matrices it
mixes them by are kept, marked "input-independent".
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..attention import Attention, State
from ..errors import CaptureNotSupported, DtypeError, NotSupported, ShapeError, StateNotSupported, UnknownName
from ..kernels import Bias
from ..layers import Mixer
from ..patterns import Pattern, full, placed
from .labels import Labels, lines
from .maps import Map, Maps

Choice = int | Iterable[int] | slice | None
Chooser = str | int | Callable[[str], bool] | Iterable[str | int] | None

CHUNK = 64 * 2**20  # bytes of work at a time, beside q, k and what is kept
LIMIT = 2 * 2**30  # bytes kept in all
COPIES = 6  # of a chunk that a definition holds at once: scores, exponentials, quotients, masks; softmax was seen to hold 4.5


@contextmanager
def capture(
    model: nn.Module,
    layers: Chooser = None,
    heads: Choice = None,
    rows: Choice = None,
    tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    chunk: int = CHUNK,
    limit: int = LIMIT,
) -> Iterator[Maps]:
    """Keep the weights of every call inside the `with`, in `maps`, on the CPU.

    layers: paths of modules (or of a module above), globs, numbers in order of first call, or a predicate on paths; all if None.
    heads:  numbers, from the end if negative.
    rows:   which queries of each call, likewise: a number, some, a slice. `rows=-1` is the newest one.
    tokens: words for the positions, of all or of each batch row; maps of that length get them as labels.
    dtype:  of what is kept: float32, float16 or float64.
    chunk:  bytes of work at a time. A single row that needs more is still done.
    limit:  bytes that may be kept in all; asking for more is refused, and says what to narrow.

    Weights are those before dropout. A mechanism that gives single rows no cheaper than all (`weights_of` not its own) forms the whole
    matrix for a moment. Random mechanisms draw again what they drew in the call, and their generators go on as if never asked.
    Inside, compiled models run uncompiled: compiled code would not see the hooks. What gradient checkpointing computes
    again during a backward pass is not recorded twice.
    """
    if dtype not in (torch.float32, torch.float16, torch.float64):
        raise DtypeError(f"maps are kept as float32, float16 or float64, not {dtype}")
    known = {_path(name, module): module for name, module in model.named_modules() if isinstance(module, Attention | Mixer)}
    if not known:
        raise CaptureNotSupported(
            f"{type(model).__name__} holds no regard.attention.Attention, nor a Mixer, so there is nothing to look at"
        )
    watch = _Watch(known, _chooser(layers, list(known)), heads, rows, tokens, dtype, chunk, limit)
    with ExitStack() as undo:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it would cost seconds
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        undo.callback(model.register_forward_pre_hook(watch.begin_run).remove)
        for name, module in known.items():
            undo.callback(module.register_forward_pre_hook(watch.before(name), with_kwargs=True).remove)
            undo.callback(module.register_forward_hook(watch.after(name), with_kwargs=True).remove)
        yield watch.maps
    if tokens is not None and watch.maps.all and not watch.labelled:
        sizes = sorted({(m.queries, m.keys) for m in watch.maps.all})
        raise ShapeError(f"tokens= gives {watch.longest} labels, but no map has as many queries or keys; (queries, keys) were {sizes}")


class _Watch:
    """What one capture is asked for, and what it has seen so far."""

    def __init__(
        self,
        known: dict[str, Attention | Mixer],
        wanted: Callable[[str, int], bool],
        heads: Choice,
        rows: Choice,
        tokens: Sequence[str] | Sequence[Sequence[str]] | None,
        dtype: torch.dtype,
        chunk: int,
        limit: int,
    ):
        self.known, self.wanted, self.tokens = known, wanted, tokens
        self.heads, self.rows = _listed(heads), _listed(rows)
        self.dtype, self.chunk, self.limit = dtype, chunk, limit
        self.maps = Maps(idle=known)
        self.longest = 0
        if tokens is not None:
            self.longest = len(tokens) if all(isinstance(word, str) for word in tokens) else max(map(len, tokens), default=0)
        self.labelled = False
        self.run = -1
        self.order: dict[str, int] = {}  # of first call
        self.calls: dict[str, int] = {}
        self.dice: dict[str, _Dice] = {}
        self.streams: list[ref[State]] = []  # weak: a capture does not keep caches alive

    def begin_run(self, *_: Any) -> None:
        if not _again():
            self.run += 1

    def before(self, name: str) -> Callable[..., None]:
        def remember(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if _again() or not self.wanted(name, self.order.setdefault(name, len(self.order))):
                return
            layer = self.known[name]
            if type(layer).weights in (Attention.weights, Mixer.weights):
                raise self._no_weights(name, layer)
            state = _said(layer, args, kwargs).get("state")
            if isinstance(layer, Attention) and state is not None:
                try:
                    state.keep_keys()
                except StateNotSupported as gone:
                    raise CaptureNotSupported(f"{name}: the weights of a step over what was forgotten cannot be had: {gone}") from gone
            self.dice[name] = _Dice(layer)

        remember._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled inside the capture: break, do not trace
        return remember

    def after(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
            if _again() or not self.wanted(name, self.order[name]):
                return
            attention, dice = self.known[name], self.dice.pop(name)
            said = _said(attention, args, kwargs)
            if isinstance(attention, Mixer):
                self.maps.all.append(self._fixed(name, attention, said["x_BLD"], said["pattern"]))
                return
            with dice.as_before(), torch.no_grad(), torch.autocast(said["q_BLHK"].device.type, enabled=False):
                state, bias, extra = said.get("state"), said.get("bias"), said.get("extra_BMHE")
                self.maps.all.append(
                    self._look(name, attention, said["q_BLHK"], said["k_BMHK"], said.get("pattern", full), bias, extra, state, dice)
                )

        record._torchdynamo_disable = True  # type: ignore[attr-defined]
        return record

    def _look(
        self,
        name: str,
        attention: Attention,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        pattern: Pattern,
        bias: Tensor | Bias | None,
        extra_BMHE: Tensor | None,
        state: State | None,
        dice: _Dice,
    ) -> Map:
        L, rule, columns, before = q_BLHK.shape[1], str(attention.within(pattern)), None, 0
        if state is not None:
            held = state.keys()
            if held is None:
                raise CaptureNotSupported(
                    f"{name}: {type(state).__name__} does not keep its keys one by one, so a step has no weights over them. "
                    "Run the whole sequence in one call without a state, or leave this layer out with layers="
                )
            k_BMHK, columns = held
            pattern, bias, before = state.over(pattern, L), state.bias_over(bias, L), state.length - L
            if not isinstance(pattern, placed):  # say where the queries stand among the keys: at the end
                stand = torch.arange(k_BMHK.shape[1], device=k_BMHK.device)
                pattern = placed(pattern.fit(L, len(stand)), stand[len(stand) - L :], stand)
            extra_BMHE = state.extras() if extra_BMHE is not None else None
        M = k_BMHK.shape[1]
        heads = _choose(self.heads, q_BLHK.shape[2], "heads", name)
        rows = _choose(self.rows, L, "rows", name)
        positions = tuple(range(M)) if columns is None else tuple(columns.tolist())
        extra = {} if extra_BMHE is None else {"extra_BMHE": extra_BMHE.detach()}
        weights_BHLM = self._weights(name, attention, heads, rows, q_BLHK.detach(), k_BMHK.detach(), pattern, bias, extra, dice, state)
        call = self.calls[name] = self.calls.get(name, -1) + 1
        places, keys = tuple(before + row for row in rows), max(positions, default=-1) + 1
        return Map(
            layer=name,
            mechanism=attention.facts.name,
            call=call,
            run=max(self.run, 0),
            heads=heads,
            rows=places,
            columns=positions,
            queries=before + L,
            weights_BHLM=weights_BHLM,
            normalised=_normalised(weights_BHLM, q_BLHK.dtype),
            pattern=rule,
            stream=None if state is None else self._stream(state),
            query_labels=self._labels(places, before + L, state is not None),
            key_labels=self._labels(positions, keys, state is not None),
        )

    @torch.no_grad()
    def _fixed(self, name: str, mixer: Mixer, x_BLD: Tensor, pattern: Pattern) -> Map:
        """What a layer does to any input of this length."""
        B, L = x_BLD.shape[:2]
        whole_BHLM = mixer.weights(L, pattern)
        heads, rows = _choose(self.heads, whole_BHLM.shape[1], "heads", name), _choose(self.rows, L, "rows", name)
        self._afford(name, (B, len(heads), len(rows), L))
        weights_BHLM = whole_BHLM[:, list(heads)][:, :, list(rows)].to("cpu", self.dtype).expand(B, -1, -1, -1).contiguous()
        call, places = self.calls.get(name, -1) + 1, tuple(range(L))
        self.calls[name] = call
        return Map(
            layer=name,
            mechanism=f"{mixer.name} (input-independent)",
            call=call,
            run=max(self.run, 0),
            heads=heads,
            rows=rows,
            columns=places,
            queries=L,
            weights_BHLM=weights_BHLM,
            normalised=_normalised(weights_BHLM, x_BLD.dtype),
            pattern=str(pattern),
            query_labels=self._labels(rows, L, False),
            key_labels=self._labels(places, L, False),
        )

    def _weights(
        self,
        name: str,
        attention: Attention,
        heads: tuple[int, ...],
        rows: tuple[int, ...],
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        pattern: Pattern,
        bias: Tensor | Bias | None,
        extra: dict[str, Tensor],
        dice: _Dice,
        state: State | None,
    ) -> Tensor:
        (B, L, H, _), M = q_BLHK.shape, k_BMHK.shape[1]
        self._afford(name, (B, len(heads), len(rows), M))
        a_row = max(COPIES * B * H * M * q_BLHK.element_size(), 1)
        alone = attention.rows_apart
        if not alone and a_row * L > self.limit:
            raise CaptureNotSupported(
                f"{name}: {type(attention).__name__} gives single rows only out of its whole {L} × {M} matrix, {_mib(a_row * L)} of work "
                f"here, more than the limit of {_mib(self.limit)}; a shorter sequence, a smaller batch or a higher limit= will do"
            )
        step = max(1, self.chunk // a_row if alone else len(rows))
        kept_BHLM = torch.empty(B, len(heads), len(rows), M, dtype=self.dtype)
        some = torch.tensor(heads, device=q_BLHK.device)
        for first in range(0, len(rows), step):
            dice.roll_back()
            here = torch.tensor(rows[first : first + step], device=q_BLHK.device)
            try:
                part_BHLM = attention.weights_of(here, q_BLHK, k_BMHK, pattern, bias, **extra)
            except NotImplementedError as missing:
                raise self._no_weights(name, attention) from missing
            except (NotSupported, ShapeError) as refused:
                if state is None:
                    raise
                raise CaptureNotSupported(f"{name}: the weights of a step cannot be had: {refused}") from refused
            if part_BHLM.shape != (B, H, len(here), M):
                raise CaptureNotSupported(f"{name}: weights {tuple(part_BHLM.shape)} are not rows over the keys, {(B, H, len(here), M)}")
            kept_BHLM[:, :, first : first + step] = part_BHLM if len(heads) == H else part_BHLM[:, some]
        return kept_BHLM

    def _afford(self, name: str, shape: tuple[int, int, int, int]) -> None:
        held, asked = self.maps.nbytes, shape[0] * shape[1] * shape[2] * shape[3] * self.dtype.itemsize
        if held + asked > self.limit:
            B, H, L, M = shape
            raise CaptureNotSupported(
                f"{name}: {B} batch rows × {H} heads × {L} rows × {M} keys take {_mib(asked)}, beside {_mib(held)} already kept of "
                f"{len(self.maps.all)} calls: more than the limit of {_mib(self.limit)}. Narrow layers=, heads= or rows=, or raise limit="
            )

    def _labels(self, positions: tuple[int, ...], size: int, growing: bool) -> Labels:
        """The user's words where they fit: as many as positions, or, in a stream, at least as many as there are yet."""
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
        others = [path for path, module in self.known.items() if type(module).weights not in (Attention.weights, Mixer.weights)]
        why = ": it mixes tokens, but not by one matrix" if isinstance(layer, Mixer) else ""
        return CaptureNotSupported(
            f"{name}: {type(layer).__name__} has no weights to show{why}; leave it out with layers=. "
            + (f"These have: {', '.join(others)}" if others else "No layer of this model has")
        )


class _Dice:
    """The random numbers a call may draw: as they stood before it, so that they can be drawn again."""

    def __init__(self, layer: nn.Module):
        own = [thing for part in layer.modules() for thing in vars(part).values() if isinstance(thing, torch.Generator)]
        on_gpu = torch.cuda.default_generators if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
        self.generators = [torch.default_generator, *on_gpu, *own]
        self.states = [g.get_state() for g in self.generators]

    def roll_back(self) -> None:
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Afterwards they stand where the call left them."""
        now = [g.get_state() for g in self.generators]
        try:
            yield
        finally:
            for generator, state in zip(self.generators, now, strict=True):
                generator.set_state(state)


def _said(attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a call was given, by name."""
    given = inspect.signature(type(attention).forward).bind(attention, *args, **kwargs)
    given.apply_defaults()
    return given.arguments


def _again() -> bool:
    """Whether a backward pass is under way: what runs then was seen before."""
    return bool(torch._C._current_graph_task_id() != -1)


def _path(name: str, module: nn.Module) -> str:
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod") or type(module).__name__  # names do not change with torch.compile


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _normalised(weights_BHLM: Tensor, computed: torch.dtype) -> bool:
    """Asked of the numbers, not of the facts: a learned sink takes weight from mechanisms that are normalised without."""
    if not weights_BHLM.numel():
        return True
    slack = 64 * max(torch.finfo(computed).eps, torch.finfo(weights_BHLM.dtype).eps, 1e-7)
    sums, (low, high) = weights_BHLM.sum(-1, dtype=torch.float32), weights_BHLM.aminmax(dim=-1)  # nothing here is as large as the weights
    return bool((((sums - 1).abs() < slack) | ((low == 0) & (high == 0))).all())


def _listed(asked: Choice) -> int | slice | tuple[int, ...] | None:
    return asked if asked is None or isinstance(asked, int | slice) else tuple(int(n) for n in asked)


def _choose(asked: int | slice | tuple[int, ...] | None, size: int, what: str, name: str) -> tuple[int, ...]:
    if asked is None or isinstance(asked, slice):
        chosen = list(range(size)[slice(None) if asked is None else asked])
    else:
        numbers = (asked,) if isinstance(asked, int) else asked
        wrong = [n for n in numbers if not -size <= n < size]
        if wrong:
            raise ShapeError(
                f"{name} has {size} {what}, 0 … {size - 1}; there is no {', '.join(map(str, wrong))}. Narrow layers= if others have"
            )
        chosen = [n % size for n in numbers]
    if not chosen and asked is not None:
        raise ShapeError(f"{name} has {size} {what}, and {what}={asked} chooses none of them")
    return tuple(sorted(set(chosen)))


def _chooser(layers: Chooser, known: list[str]) -> Callable[[str, int], bool]:
    """A test on (path, number in order of first call)."""
    if layers is None:
        return lambda name, number: True
    if callable(layers):
        named = {name for name in known if layers(name)}
        if not named:
            raise UnknownName("layer", getattr(layers, "__name__", "predicate"), known)
        return lambda name, number: name in named
    names: set[str] = set()
    numbers: set[int] = set()
    for asked in [layers] if isinstance(layers, str | int) else layers:
        if isinstance(asked, int):
            if not -len(known) <= asked < len(known):
                raise UnknownName("layer", str(asked), (f"{n}: {name}" for n, name in enumerate(known)))
            numbers.add(asked % len(known))
            continue
        found = {name for name in known if name == asked or name.startswith(asked + ".") or fnmatchcase(name, asked)}
        if not found:
            raise UnknownName("layer", asked, known)
        names |= found
    return lambda name, number: name in names or number in numbers

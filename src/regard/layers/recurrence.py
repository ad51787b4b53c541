r"""Segments that remember: a long text is read piece by piece, and each layer also looks at what it saw before.

$$\tilde h = [\,\mathrm{stopgrad}(m);\, h\,] \qquad q = W_q h, \quad k, v = W_k \tilde h,\, W_v \tilde h \qquad
  m \leftarrow \text{the last } M \text{ rows of } \tilde h$$

Each is a mixer for `Block`, put around a `MultiHead`: `Block(width, Recurrence(MultiHead(…, position=RelativeXL(…)), 512), …)`.
What is remembered is a state the caller owns: one batch row is one stream, `reset` where another text begins. Positions must be
relative (`RelativeXL`, `Rotary`, `ALiBi`, `Buckets`): a remembered row stands nearer or further with every segment.

With a memory that holds all that came before, segments of any length give what one pass over the whole gives. With a
shorter one a layer sees M rows further back, a stack of n layers n · M.

Paper: Dai et al. 2019, "Transformer-XL", arXiv:1901.02860, section 3.2; Rae et al. 2019, "Compressive transformers",
       arXiv:1911.05507, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ..attention import State
from ..errors import ShapeError, StateNotSupported
from ..kernels import attend
from ..patterns import Pattern, begun, causal, placed, since
from ._states import States
from .multihead import MultiHead

Kind = TypeVar("Kind", bound="Past")


class Past(State):
    """The last `size` rows a layer was given, rows_BMD, cut off from their gradients."""

    def __init__(self, batch: int, size: int):
        super().__init__(batch)
        self.size = size
        self.rows_BMD: Tensor | None = None

    def with_rows(self, x_BLD: Tensor) -> Tensor:
        """What is remembered, and x behind it."""
        self._check(len(x_BLD))
        return x_BLD if self.rows_BMD is None else torch.cat([self.rows_BMD.to(x_BLD.dtype), x_BLD], 1)

    def over(self, pattern: Pattern, queries: int) -> Pattern:
        """The pattern, a rule on places in the stream, for `queries` new rows that look at `with_rows` of them."""
        held = 0 if self.rows_BMD is None else self.rows_BMD.shape[1]
        if self._first is not None:
            pattern = begun(pattern, self._first)
        if held == self.length:
            return pattern
        at = torch.arange(self.length - held, self.length + queries)
        return placed(pattern.fit(self.length + queries, self.length + queries), at[held:], at)

    def take(self, x_BLD: Tensor) -> None:
        """Remember x, and forget what is too old."""
        rows_BMD = self.with_rows(x_BLD.detach())
        self.rows_BMD = rows_BMD[:, max(0, rows_BMD.shape[1] - self.size) :]
        self.length += x_BLD.shape[1]

    def reorder(self, rows: Tensor) -> Self:
        self.rows_BMD = None if self.rows_BMD is None else self.rows_BMD.index_select(0, rows)
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        self._joins(other)
        if self.size != other.size:
            raise StateNotSupported(f"these remember the last {self.size} and {other.size} rows; join states that the same part began")
        known = self.rows_BMD if self.rows_BMD is not None else other.rows_BMD
        if known is not None:
            parts = [
                known.new_zeros(n, 0, known.shape[2]) if x is None else x
                for x, n in ((self.rows_BMD, self.batch), (other.rows_BMD, other.batch))
            ]
            held = max(x.shape[1] for x in parts)
            self.rows_BMD = torch.cat([F.pad(x, (0, 0, held - x.shape[1], 0)) for x in parts])
        return super().join(other)

    def _begin(self, first: list[int]) -> None:
        before = min(first, default=0)
        if before and self.rows_BMD is not None:  # no row looks there any more
            self.rows_BMD = self.rows_BMD[:, max(0, before - self.length + self.rows_BMD.shape[1]) :]
        super()._begin(first)

    def detach(self) -> Self:
        return self  # it never held gradients


class Recurrence(nn.Module):
    """Transformer-XL: x looks at itself and at the last `length` rows of the segments before.

    Cost:    a segment of L rows takes O(L·(M + L)) pairs and projects M + L rows to keys and values; evaluating a long text so
             costs about one pass, where sliding a window of M costs one pass a token.
    Limits:  the memory holds what the mixer is given, so behind a norm that comes first it holds normed rows: the paper's
             code norms again what it remembers (the same, until an optimiser moves the norm). Segments have no padding.
             `length` may be changed between training and evaluation; a state keeps what it was started with.
    """

    def __init__(self, heads: MultiHead, length: int):
        super().__init__()
        if length < 0:
            raise ShapeError(f"Recurrence remembers `length` rows, so at least 0, got {length}")
        self.heads, self.length = heads, length

    def forward(self, x_BLD: Tensor, pattern: Pattern = causal, state: State | None = None) -> Tensor:
        """Without a state, x alone."""
        if state is None:
            return self.heads(x_BLD, pattern=pattern)  # type: ignore[no-any-return]
        past = _known(state, Past, "Recurrence")
        out_BLD = self.heads(x_BLD, past.with_rows(x_BLD), past.over(pattern, x_BLD.shape[1]))
        past.take(x_BLD)
        return out_BLD  # type: ignore[no-any-return]

    def start(self, batch: int, pattern: Pattern = causal) -> Past:
        """Nothing remembered yet. A pattern that looks no further back than r rows needs no more of them."""
        reach = pattern.reach()
        return Past(batch, self.length if reach is None or reach[1] else min(self.length, reach[0]))


class MeanPool(nn.Module):
    """Each `rate` rows become their mean."""

    def __init__(self, rate: int):
        super().__init__()
        self.rate = rate

    def forward(self, rows_BMD: Tensor) -> Tensor:
        return rows_BMD.unflatten(1, (-1, self.rate)).mean(2)  # type: ignore[no-any-return]


class MaxPool(MeanPool):
    """Each `rate` rows become their maximum, feature by feature."""

    def forward(self, rows_BMD: Tensor) -> Tensor:
        return rows_BMD.unflatten(1, (-1, self.rate)).amax(2)  # type: ignore[no-any-return]


class ConvPool(nn.Module):
    """Each `rate` rows become a learned linear map of them: a convolution with stride and kernel `rate`, as one product."""

    def __init__(self, width: int, rate: int):
        super().__init__()
        self.rate = rate
        self.mix = nn.Linear(rate * width, width)

    def forward(self, rows_BMD: Tensor) -> Tensor:
        return self.mix(rows_BMD.unflatten(1, (-1, self.rate)).flatten(2))  # type: ignore[no-any-return]


class CompressedPast(Past):
    """The last rows, and before them compressed ones, `small_BCD`: each stands for `rate` rows.

    `loss` is what compression has to learn from the segments since `compression_loss` last took it.
    """

    def __init__(self, batch: int, size: int, small: int, rate: int):
        super().__init__(batch, size)
        self.small, self.rate = small, rate
        self.small_BCD: Tensor | None = None
        self.loss: Tensor | None = None

    def with_rows(self, x_BLD: Tensor) -> Tensor:
        near_BMD = super().with_rows(x_BLD)
        return near_BMD if self.small_BCD is None else torch.cat([self.small_BCD.to(x_BLD.dtype), near_BMD], 1)

    def over(self, pattern: Pattern, queries: int) -> Pattern:
        """Rows held stand side by side, compressed ones too, as in the paper: the pattern is a rule on them."""
        if self._first is None:
            return pattern
        first_B = torch.tensor(self._first)
        small = 0 if self.small_BCD is None else self.small_BCD.shape[1]
        near = 0 if self.rows_BMD is None else self.rows_BMD.shape[1]
        squeezed = self.length - near  # rows that were compressed; the k-th compressed row is of rows k·rate … (k + 1)·rate
        dropped = squeezed // self.rate - small
        # a compressed row that mixes two texts belongs to neither
        lost_B = (-(-first_B // self.rate) - dropped).clamp(0, small) + (first_B - squeezed).clamp(0, near)
        return pattern & since(lost_B)

    def overflow(self, x_BLD: Tensor) -> Tensor:
        """Remember x. Returned are the rows that became too old, a multiple of `rate` of them: the rest waits."""
        rows_BMD = Past.with_rows(self, x_BLD.detach())
        old = max(0, rows_BMD.shape[1] - self.size) // self.rate * self.rate
        self.rows_BMD = rows_BMD[:, old:]
        self.length += x_BLD.shape[1]
        return rows_BMD[:, :old]

    def squeeze(self, small_BCD: Tensor) -> None:
        """Remember compressed rows, and forget the oldest of them."""
        small_BCD = small_BCD.detach() if self.small_BCD is None else torch.cat([self.small_BCD, small_BCD.detach()], 1)
        self.small_BCD = small_BCD[:, max(0, small_BCD.shape[1] - self.small) :]

    def _joins(self, other: State) -> None:
        raise StateNotSupported(
            f"each row of a {type(self).__name__} was squeezed {self.rate} to 1 from its own beginning on, so rows of different lengths do not "
            "fit together; go on with them one by one"
        )

    def _begin(self, first: list[int]) -> None:
        self._first = tuple(first)  # positions stay: what was squeezed is counted from the beginning of the stream

    def reorder(self, rows: Tensor) -> Self:
        self.small_BCD = None if self.small_BCD is None else self.small_BCD.index_select(0, rows)
        return super().reorder(rows)


class Compression(nn.Module):
    r"""Compressive transformer: rows too old for the memory are not dropped but squeezed into a second one.

    $$\tilde h = [\,c;\, m;\, h\,] \qquad c \leftarrow [\,c;\, f(\text{the oldest rows of } m)\,]$$

    `pool` is f: `MeanPool`, `MaxPool` or `ConvPool`. A pool that learns does so by reconstruction alone: what the new rows read from
    the compressed ones by content, with the layer's own heads, should be what they read from the originals,

    $$\big\| \mathrm{attn}(h, f(m)) - \mathrm{attn}(h, m) \big\|^2 \quad \text{averaged over elements},$$

    with gradients to f and nothing else. It is in the state until `compression_loss(state)` takes it to be added to the loss.

    Cost:    a segment of L rows looks at M + M_c rows more, as far back as M + rate · M_c; the loss takes as much as looking at the
             rows compressed and their images.
    Limits:  patterns are rules on the rows held, side by side. Between two squeezes up to rate − 1 rows more than `length` are held.
             After `reset` a compressed row that would mix two texts is left out. No padding. The first L rows may exceed `length`.
    Paper:   arXiv:1911.05507, algorithms 1 and 2. The paper's pools "dilated convolution" and "most used" are not here.
    """

    def __init__(self, heads: MultiHead, length: int, small: int, pool: MeanPool | ConvPool):
        super().__init__()
        if length < 0 or small < 0 or pool.rate < 1:
            raise ShapeError(
                f"Compression remembers length={length} and small={small} rows, squeezed {pool.rate} to 1: none may be negative"
            )
        self.heads, self.length, self.small, self.pool = heads, length, small, pool

    def forward(self, x_BLD: Tensor, pattern: Pattern = causal, state: State | None = None) -> Tensor:
        """Without a state, x alone."""
        if state is None:
            return self.heads(x_BLD, pattern=pattern)  # type: ignore[no-any-return]
        past = _known(state, CompressedPast, "Compression")
        out_BLD = self.heads(x_BLD, past.with_rows(x_BLD), past.over(pattern, x_BLD.shape[1]))
        old_BMD = past.overflow(x_BLD)
        if old_BMD.shape[1]:
            small_BCD = self.pool(old_BMD)
            past.squeeze(small_BCD)
            if small_BCD.requires_grad:
                loss = self._reconstruction(x_BLD.detach(), old_BMD, small_BCD)
                past.loss = loss if past.loss is None else past.loss + loss
        return out_BLD  # type: ignore[no-any-return]

    def start(self, batch: int, pattern: Pattern = causal) -> CompressedPast:
        return CompressedPast(batch, self.length, self.small, self.pool.rate)

    def _reconstruction(self, x_BLD: Tensor, old_BMD: Tensor, small_BCD: Tensor) -> Tensor:
        look, fixed = _ByContent(self.heads), {name: x.detach() for name, x in self.heads.named_parameters(prefix="heads")}
        return F.mse_loss(*(functional_call(look, fixed, (x_BLD, memory)) for memory in (small_BCD, old_BMD)))


class _ByContent(nn.Module):
    """Softmax attention with some layer's projections, and neither positions nor output projection."""

    def __init__(self, heads: MultiHead):
        super().__init__()
        self.heads = heads

    def forward(self, x_BLD: Tensor, memory_BMD: Tensor) -> Tensor:
        memory = self.heads.remember(memory_BMD)
        v_BMHV = memory.v_BMHV
        return attend(self.heads._query(x_BLD).to(v_BMHV.dtype), memory.k_BMHK.to(v_BMHV.dtype), v_BMHV)


def compression_loss(*states: State) -> Tensor | None:
    """The sum of what the compressions behind these states have to learn, taken out of them; None if there is nothing."""
    losses = []
    for past in _compressed(states):
        losses += [] if past.loss is None else [past.loss]
        past.loss = None
    return torch.stack(losses).sum() if losses else None


def _compressed(states: tuple[State, ...]) -> Iterator[CompressedPast]:
    for state in states:
        if isinstance(state, CompressedPast):
            yield state
        elif isinstance(state, States):
            yield from _compressed(tuple(state.parts.values()))


def _known(state: State, kind: type[Kind], me: str) -> Kind:
    if type(state) is not kind:
        raise StateNotSupported(f"a {me} goes on from the {kind.__name__} of its start(batch, pattern), not from a {type(state).__name__}")
    return state

r"""Segment recurrence: a long text is read in segments, and each layer also attends to its inputs from earlier segments.

$$\tilde h = [\,\mathrm{stopgrad}(m);\, h\,] \qquad q = W_q h, \quad k, v = W_k \tilde h,\, W_v \tilde h \qquad
  m \leftarrow \text{the last } M \text{ rows of } \tilde h$$

Each is a mixer for `Block` that wraps a `MultiHead`: `Block(width, SegmentRecurrence(MultiHead(…, position=RelativeXL(…)), 512), …)`.
The memory is a state that the caller holds: each batch row is one stream, `reset` starts a new text. Positions must be relative
(`RelativeXL`, `Rotary`, `ALiBi`, `Buckets`): the distance to a remembered row grows with every segment.

With a memory as long as the text, segments of any length give the result of one pass over the whole. With a shorter one a layer
reaches M rows further back, a stack of n layers n · M.

Paper: Dai et al. 2019, "Transformer-XL", arXiv:1901.02860, section 3.2; Rae et al. 2019, "Compressive transformers",
       arXiv:1911.05507, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ..attention import State
from ..errors import ShapeError, StateNotSupported
from ..kernels import attend
from ..patterns import Pattern, at_positions, causal, from_row_start, since
from .block import States
from .multihead import MultiHead


class Past(State):
    """The last `size` inputs of a layer, rows_BMD, detached.

    Args:
        batch: number of batch rows.
        size: maximum number of rows.
    """

    def __init__(self, batch: int, size: int):
        super().__init__(batch)
        self.size = size
        self.rows_BMD: Tensor | None = None

    def with_rows(self, x_BLD: Tensor) -> Tensor:
        """The remembered rows, followed by x."""
        if len(x_BLD) != self.batch:
            raise ShapeError(f"the state has {self.batch} rows, got a batch of {len(x_BLD)}; state.reorder(rows) changes its rows")
        return x_BLD if self.rows_BMD is None else torch.cat([self.rows_BMD.to(x_BLD.dtype), x_BLD], 1)

    def over(self, pattern: Pattern, queries: int) -> Pattern:
        """The pattern, a rule on positions in the stream, for `queries` new rows that attend to the result of `with_rows`."""
        held = 0 if self.rows_BMD is None else self.rows_BMD.shape[1]
        if self._first is not None:
            pattern = from_row_start(pattern, self._first)
        if held == self.length:
            return pattern
        at = torch.arange(self.length - held, self.length + queries)
        return at_positions(pattern.fit(self.length + queries, self.length + queries), at[held:], at)

    def take(self, x_BLD: Tensor) -> None:
        """Add x to the memory, and drop the oldest rows."""
        rows_BMD = self.with_rows(x_BLD.detach())
        self.rows_BMD = rows_BMD[:, max(0, rows_BMD.shape[1] - self.size) :]
        self.length += x_BLD.shape[1]

    def reorder(self, rows: Tensor) -> Self:
        self.rows_BMD = None if self.rows_BMD is None else self.rows_BMD.index_select(0, rows)
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)
        if self.size != other.size:
            raise StateNotSupported(f"these hold the last {self.size} and {other.size} rows; join states that the same module started")
        known = self.rows_BMD if self.rows_BMD is not None else other.rows_BMD
        if known is not None:
            parts = [known.new_zeros(past.batch, 0, known.shape[2]) if past.rows_BMD is None else past.rows_BMD for past in (self, other)]
            held = max(x.shape[1] for x in parts)
            self.rows_BMD = torch.cat([F.pad(x, (0, 0, held - x.shape[1], 0)) for x in parts])
        return super().join(other)

    def _start_at(self, first: list[int]) -> None:
        before = min(first, default=0)
        if before and self.rows_BMD is not None:  # no row attends to these any more
            self.rows_BMD = self.rows_BMD[:, max(0, before - self.length + self.rows_BMD.shape[1]) :]
        super()._start_at(first)

    def detach(self) -> Self:
        return self  # it never holds gradients


class SegmentRecurrence(nn.Module):
    """Transformer-XL: x attends to itself and to the last `length` rows of earlier segments.

    Cost:    a segment of L rows computes O(L·(M + L)) scores and projects M + L rows to keys and values; evaluating a long text
             costs about one pass, where a sliding window of M costs one pass per token.
    Limits:  the memory holds the inputs of the mixer, so in a pre-norm block it holds normed rows: the paper's code norms its
             memory again (the same, until the optimizer changes the norm). Segments have no padding. `length` may be
             changed between training and evaluation; a state keeps the value it was started with.

    Args:
        heads: attention of the layer.
        length: rows M of the memory.

    Shape: x_BLD → out_BLD.
    """

    kind: ClassVar[type[Past]] = Past

    def __init__(self, heads: MultiHead, length: int):
        super().__init__()
        if length < 0:
            raise ShapeError(f"{type(self).__name__}: length={length}; expected at least 0")
        self.heads, self.length = heads, length

    def forward(self, x_BLD: Tensor, pattern: Pattern = causal, state: State | None = None) -> Tensor:
        """Attend to x and to the memory in the state; without a state, to x alone.

        Args:
            x_BLD: activations.
            pattern: pairs that are allowed.
            state: state of earlier calls, which advances; None: a whole sequence.
        """
        if state is None:
            return self.heads(x_BLD, pattern=pattern)
        if type(state) is not self.kind:
            me, given = type(self).__name__, type(state).__name__
            raise StateNotSupported(f"a {me} takes the {self.kind.__name__} of its start(batch, pattern), not a {given}")
        out_BLD = self.heads(x_BLD, state.with_rows(x_BLD), state.over(pattern, x_BLD.shape[1]))
        self.remember(state, x_BLD)
        return out_BLD

    def remember(self, past: Past, x_BLD: Tensor) -> None:
        """Add x to the memory."""
        past.take(x_BLD)

    def start(self, batch: int, pattern: Pattern = causal) -> Past:
        """An empty memory. A pattern that reaches r rows back needs no more than r of them."""
        reach = pattern.reach()
        return Past(batch, self.length if reach is None or reach[1] else min(self.length, reach[0]))


class MeanPool(nn.Module):
    """Every `rate` rows are replaced by their mean.

    Args:
        rate: rows per compressed row.

    Shape: rows_BMD → (B, M / rate, D).
    """

    def __init__(self, rate: int):
        super().__init__()
        self.rate = rate

    def forward(self, rows_BMD: Tensor) -> Tensor:
        return rows_BMD.unflatten(1, (-1, self.rate)).mean(2)


class MaxPool(MeanPool):
    """Every `rate` rows are replaced by their maximum, per feature.

    Shape: rows_BMD → (B, M / rate, D).
    """

    def forward(self, rows_BMD: Tensor) -> Tensor:
        return rows_BMD.unflatten(1, (-1, self.rate)).amax(2)


class ConvPool(nn.Module):
    """Every `rate` rows are replaced by a learned linear map of them: a convolution with stride and kernel `rate`, as one matmul.

    Args:
        width: model width D.
        rate: rows per compressed row.

    Shape: rows_BMD → (B, M / rate, D).
    """

    def __init__(self, width: int, rate: int):
        super().__init__()
        self.rate = rate
        self.mix = nn.Linear(rate * width, width)

    def forward(self, rows_BMD: Tensor) -> Tensor:
        return self.mix(rows_BMD.unflatten(1, (-1, self.rate)).flatten(2))


class CompressedPast(Past):
    """The last rows, and before them compressed ones, `small_BCD`, each for `rate` rows.

    `loss` is the reconstruction loss of the segments since the last call of `compression_loss`.

    Args:
        batch: number of batch rows.
        size: maximum number of rows in the memory.
        small: maximum number of compressed rows.
        rate: rows per compressed row.
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
        """Rows in memory have consecutive positions, compressed ones too, as in the paper: the pattern is a rule on them."""
        if self._first is None:
            return pattern
        first_B = torch.tensor(self._first)
        small = 0 if self.small_BCD is None else self.small_BCD.shape[1]
        near = 0 if self.rows_BMD is None else self.rows_BMD.shape[1]
        squeezed = self.length - near  # rows that were compressed; the k-th compressed row is made of rows k·rate … (k + 1)·rate
        dropped = squeezed // self.rate - small
        # a compressed row that mixes two texts is masked for both
        lost_B = (-(-first_B // self.rate) - dropped).clamp(0, small) + (first_B - squeezed).clamp(0, near)
        return pattern & since(lost_B)

    def overflow(self, x_BLD: Tensor) -> Tensor:
        """Add x to the memory. Returns the rows that became too old, a multiple of `rate` of them: the rest waits."""
        rows_BMD = Past.with_rows(self, x_BLD.detach())
        old = max(0, rows_BMD.shape[1] - self.size) // self.rate * self.rate
        self.rows_BMD = rows_BMD[:, old:]
        self.length += x_BLD.shape[1]
        return rows_BMD[:, :old]

    def squeeze(self, small_BCD: Tensor) -> None:
        """Add compressed rows to the memory, and drop the oldest."""
        small_BCD = small_BCD.detach() if self.small_BCD is None else torch.cat([self.small_BCD, small_BCD.detach()], 1)
        self.small_BCD = small_BCD[:, max(0, small_BCD.shape[1] - self.small) :]

    def _check_join(self, other: State) -> None:
        raise StateNotSupported(
            f"each row of a {type(self).__name__} was compressed {self.rate} to 1 from its own start, so rows of different lengths cannot be "
            "joined; process them one by one"
        )

    def _start_at(self, first: list[int]) -> None:
        self._first = tuple(first)  # positions stay: compressed rows are counted from the start of the stream

    def reorder(self, rows: Tensor) -> Self:
        self.small_BCD = None if self.small_BCD is None else self.small_BCD.index_select(0, rows)
        return super().reorder(rows)


class Compression(SegmentRecurrence):
    r"""Compressive transformer: rows too old for the memory are compressed into a second one instead of dropped.

    $$\tilde h = [\,c;\, m;\, h\,] \qquad c \leftarrow [\,c;\, f(\text{the oldest rows of } m)\,]$$

    A learned pool is trained by reconstruction only: content-based attention of the
    new rows to the compressed ones, with the layer's own heads, should equal attention to the originals,

    $$\big\| \mathrm{attn}(h, f(m)) - \mathrm{attn}(h, m) \big\|^2 \quad \text{averaged over elements},$$

    with gradients to f only. It is kept in the state until `compression_loss(state)` takes it to be added to the loss.

    Cost:    a segment of L rows attends to M + M_c more rows, as far back as M + rate · M_c; the loss costs as much as attention to
             the compressed rows and their originals.
    Limits:  patterns are rules on the rows in memory. Between two compressions up to rate − 1 rows more than `length` are held.
             After `reset` a compressed row that would mix two texts is masked. No padding. The first L rows may exceed `length`.
    Args:
        heads: attention of the layer.
        length: rows M of the memory.
        small: compressed rows M_c of the second memory.
        pool: f: `MeanPool`, `MaxPool` or `ConvPool`.
    Shape:   x_BLD → out_BLD.
    Paper:   arXiv:1911.05507, algorithms 1 and 2. The paper's pools "dilated convolution" and "most used" are not here.
    """

    kind = CompressedPast

    def __init__(self, heads: MultiHead, length: int, small: int, pool: MeanPool | ConvPool):
        super().__init__(heads, length)
        if small < 0 or pool.rate < 1:
            raise ShapeError(f"Compression: small={small}, rate={pool.rate}; expected at least 0 and 1")
        self.small, self.pool = small, pool

    def remember(self, past: Past, x_BLD: Tensor) -> None:
        assert isinstance(past, CompressedPast)
        old_BMD = past.overflow(x_BLD)
        if old_BMD.shape[1]:
            small_BCD = self.pool(old_BMD)
            past.squeeze(small_BCD)
            if small_BCD.requires_grad:
                loss = self._reconstruction(x_BLD.detach(), old_BMD, small_BCD)
                past.loss = loss if past.loss is None else past.loss + loss

    def start(self, batch: int, pattern: Pattern = causal) -> CompressedPast:
        return CompressedPast(batch, self.length, self.small, self.pool.rate)

    def _reconstruction(self, x_BLD: Tensor, old_BMD: Tensor, small_BCD: Tensor) -> Tensor:
        attention, fixed = _ByContent(self.heads), {name: x.detach() for name, x in self.heads.named_parameters(prefix="heads")}
        return F.mse_loss(*(functional_call(attention, fixed, (x_BLD, memory)) for memory in (small_BCD, old_BMD)))


class _ByContent(nn.Module):
    """Softmax attention with the projections of a layer, without positions and output projection."""

    def __init__(self, heads: MultiHead):
        super().__init__()
        self.heads = heads

    def forward(self, x_BLD: Tensor, memory_BMD: Tensor) -> Tensor:
        memory = self.heads.remember(memory_BMD)
        v_BMHV = memory.v_BMHV
        return attend(self.heads._query(x_BLD).to(v_BMHV.dtype), memory.k_BMHK.to(v_BMHV.dtype), v_BMHV)


def compression_loss(*states: State) -> Tensor | None:
    """The sum of the reconstruction losses in these states, which are cleared; None if there are none.

    Args:
        *states: states of all layers, or of a model.
    """
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

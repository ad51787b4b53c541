"""Softmax attention under a built-in pattern: the base of mechanisms that are a named pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from ..bounds import Finite, HeadCount, Positive, Probability
from ..kernels import attend
from ..patterns import Both, Causal, Pattern, at_positions, from_row_start, full
from ..patterns.distance import Distance
from ._base import Attention, Call, Facts
from .helpers import share_heads
from .softmax import SoftmaxAttention


@dataclass(frozen=True, kw_only=True)
class PatternFacts(Facts):
    """Facts of mechanisms that are a pattern: queries and keys are one sequence, whose order matters."""

    cross: bool | Literal["last"] = False  # a window or a grid means nothing between two sequences
    positional: bool = True  # a pattern is a rule on positions


class SoftmaxOptions(TypedDict, total=False):
    """Options of the inner SoftmaxAttention."""

    scale: Finite | None
    softcap: Positive | None
    sinks: HeadCount
    dropout: Probability


class PatternAttention(Attention):
    """Softmax attention where the mechanism's own pattern and the caller's both allow.

    Pass the pattern to `super().__init__(pattern, **options)`, and write `facts` as `PatternFacts`. It should leave the
    direction to the caller: `causal` makes it causal, strictly. Queries and keys are one sequence: a window or a grid means nothing
    between two. The options are those of SoftmaxAttention.

    Args:
        own: pattern of the mechanism.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    """

    def __init__(self, own: Pattern, **options: Unpack[SoftmaxOptions]):
        super().__init__()
        self.own = own
        self.softmax = SoftmaxAttention(**options)
        if own.heads > 1:
            self.heads = own.heads

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | self.softmax.settings

    def __repr__(self) -> str:
        options = self.softmax.extra_repr()
        return f"{type(self).__name__}({self.own}{', ' * bool(options)}{options})"

    def _within(self, pattern: Pattern, length: int) -> Pattern:
        if isinstance(pattern, at_positions):  # keys at other positions than 0, 1, 2 …: `own` applies to those
            length = int(pattern.keys[-1]) + 1 if len(pattern.keys) else 0
            return at_positions(self._within(pattern.rule, length).fit(length, length), pattern.queries, pattern.keys)
        if isinstance(pattern, from_row_start):
            return from_row_start(self._within(pattern.rule, length), pattern.first)
        return pattern & self.own

    def documents_stand_alone(self) -> bool:
        return isinstance(self.own, Distance)  # it counts from the query, and not from the first token of the row

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return self.softmax._weights(q_BLHK, k_BMHK, call)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        return self.softmax._forward(q_BLHK, k_BMHK, v_BMHV, call)

    def _direction(self, call: Call) -> Pattern | None:
        """`full` or `causal` if the caller asks for nothing else: a mechanism may then have a faster path than tiles."""
        if call.bias is not None or call.cache is not None or self.softmax.sink_H is not None:
            return None
        if call.pattern is self.own:
            return full
        both = isinstance(call.pattern, Both) and isinstance(call.pattern.left, Causal) and call.pattern.right is self.own
        return call.pattern.left if both and isinstance(call.pattern, Both) else None

    def _attend(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern) -> Tensor:
        """Exact attention with the options, under another pattern."""
        softmax = self.softmax
        dropout = softmax.dropout if self.training else 0.0
        return attend(q_BLHK, k_BMHK, v_BMHV, pattern, scale=softmax.scale, softcap=softmax.softcap, dropout=dropout)


def sized_radius(length: int) -> int:
    """The radius of a window in `sized`: a sixteenth of the length, and 256 from 4,096 tokens on, as in Longformer's paper, so that costs are linear."""
    return min(256, max(1, length // 16))


class ColumnPatternAttention(PatternAttention):
    """Own pattern: the column of the query in a grid read row by row. Under `full` and `causal` each column is one dense call."""

    def __init__(self, own: Pattern, columns: int, **options: Unpack[SoftmaxOptions]):
        super().__init__(own, **options)
        self.columns = columns

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        direction = self._direction(call)
        if direction is None:
            return super()._forward(q_BLHK, k_BMHK, v_BMHV, call)
        return attend_columns(lambda q, k, v: self._attend(q, k, v, direction), self.columns, q_BLHK, k_BMHK, v_BMHV)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # (q, k, v) → average


def attend_columns(attend: Attend, columns: int, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor) -> Tensor:
    """`attend(q, k, v)` within each column of a grid read row by row, the last row perhaps shorter.

    A column takes the role of a head: a whole grid goes in one call, without a copy where heads are contiguous in memory.
    """
    length = q_BLHK.shape[1]
    columns = min(columns, length)  # beyond that each token is a column of its own
    grids = [F.pad(x, (0, 0, 0, 0, 0, -length % columns)) if length % columns else x for x in (q_BLHK, k_BMHK, v_BMHV)]
    grids = [x.unflatten(1, (-1, columns)) for x in grids]  # rows, columns, heads, size

    def fold(chosen: slice, rows: slice = slice(None)) -> Tensor:
        q, k, v = (x[:, rows, chosen].flatten(2, 3) for x in grids)
        return attend(q, k, v).unflatten(2, (-1, q_BLHK.shape[2]))

    rest = length % columns
    if not rest:
        return fold(slice(None)).flatten(1, 2)
    # the last row ends after `rest` columns: those after it are shorter by one
    longer, shorter = fold(slice(rest)), fold(slice(rest, None), slice(-1))
    return torch.cat([longer, F.pad(shorter, (0, 0, 0, 0, 0, 0, 0, 1))], 2).flatten(1, 2)[:, :length]


def attend_head_groups(groups: list[tuple[int, Attend]], q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor) -> Tensor:
    """Groups of neighbouring heads, each attending in its own way: (number of heads, attend)."""
    if len(groups) == 1:
        return groups[0][1](q_BLHK, k_BMHK, v_BMHV)
    k_BMHK, v_BMHV = (share_heads(x, q_BLHK.shape[2]) for x in (k_BMHK, v_BMHV))
    sizes = [size for size, _ in groups]
    parts = zip(*(x.split(sizes, 2) for x in (q_BLHK, k_BMHK, v_BMHV)), strict=True)
    return torch.cat([attend(*part) for (_, attend), part in zip(groups, parts, strict=True)], 2)

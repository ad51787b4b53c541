"""Softmax attention under a pattern of its own: what the mechanisms that are a pattern with a name have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import Bias
from ..patterns import Causal, Full, Pattern, begun, causal, placed
from ..patterns.distance import Distance
from ._base import Attention, share_heads
from ._scored import fits
from ._state import Cache, State
from .softmax import SoftmaxAttention


class Options(TypedDict, total=False):
    """What softmax attention may be given besides."""

    scale: float | None
    softcap: float | None
    sinks: int
    dropout: float


class Patterned(SoftmaxAttention):
    """Softmax attention that looks where `own` allows and the caller's pattern does too.

    `own` is the one thing a mechanism says. It leaves the direction to the caller: `causal` makes it causal, strictly, since what
    both allow is never ahead. It is made once; what depends on lengths, rules work out by themselves when they meet tensors,
    and plans of the kernel are kept by pattern and lengths.

    Queries and keys are one sequence: a window or a grid means nothing between two. The options are those of SoftmaxAttention.
    """

    def __init__(self, own: Pattern, **options: Unpack[Options]):
        super().__init__(**options)
        self.own = own

    @property
    def reads_apart(self) -> bool:
        return isinstance(self.own, Distance)  # the same picture wherever a document begins

    def within(self, pattern: Pattern) -> Pattern:
        if isinstance(pattern, placed):  # keys that stand elsewhere than at 0, 1, 2 …: there they stand for `own` too
            length = int(pattern.keys[-1]) + 1 if len(pattern.keys) else 0
            return placed(self.within(pattern.rule).fit(length, length), pattern.queries, pattern.keys)
        if isinstance(pattern, begun):
            return begun(self.within(pattern.rule), pattern.first)
        return pattern & self.own

    def check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        super().check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.own.heads if self.own.heads > 1 else None, None)

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        if not self.facts.streaming:
            Attention.start(self, batch, pattern)  # raises, and says why
        return super().start(batch, pattern)

    def extra_repr(self) -> str:
        return ", ".join(part for part in (str(self.own), super().extra_repr()) if part)

    def _plain(self, pattern: Pattern, bias: Tensor | Bias | None, state: State | None) -> bool:
        """Whether nothing but a direction is asked for: then a mechanism may know a faster way than tiles."""
        return bias is None and state is None and self.sink_H is None and isinstance(pattern, Full | Causal)


Look = Callable[[Tensor, Tensor, Tensor], Tensor]  # from q, k, v to the average


def in_columns(look: Look, width: int, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor) -> Tensor:
    """`look(q, k, v)` within each column of a grid `width` wide that is read row by row, the last row perhaps shorter.

    A column takes the place of a head: a whole grid goes in one call, without a copy where heads lie together in memory.
    """
    length = q_BLHK.shape[1]
    grids = [F.pad(x, (0, 0, 0, 0, 0, -length % width)) if length % width else x for x in (q_BLHK, k_BMHK, v_BMHV)]
    grids = [x.unflatten(1, (-1, width)) for x in grids]  # rows, columns, heads, size

    def fold(columns: slice, rows: slice = slice(None)) -> Tensor:
        q, k, v = (x[:, rows, columns].flatten(2, 3) for x in grids)
        return look(q, k, v).unflatten(2, (-1, q_BLHK.shape[2]))  # type: ignore[no-any-return]

    rest = length % width
    if not rest:
        return fold(slice(None)).flatten(1, 2)
    # the last row ends after `rest` columns: those after it are shorter by one
    longer, shorter = fold(slice(rest)), fold(slice(rest, None), slice(-1))
    return torch.cat([longer, F.pad(shorter, (0, 0, 0, 0, 0, 0, 0, 1))], 2).flatten(1, 2)[:, :length]


def by_heads(looks: list[tuple[int, Look]], q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor) -> Tensor:
    """Runs of neighbouring heads, each looked at in its own way: (how many heads, look)."""
    if len(looks) == 1:
        return looks[0][1](q_BLHK, k_BMHK, v_BMHV)
    k_BMHK, v_BMHV = (share_heads(x, q_BLHK.shape[2]) for x in (k_BMHK, v_BMHV))
    sizes = [size for size, _ in looks]
    runs = zip(*(x.split(sizes, 2) for x in (q_BLHK, k_BMHK, v_BMHV)), strict=True)
    return torch.cat([look(*run) for (_, look), run in zip(looks, runs, strict=True)], 2)

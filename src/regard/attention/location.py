"""Luong's location score: the query alone says which position to look at."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ..errors import ShapeError
from ..kernels import Bias
from ..patterns import Pattern, causal
from ._base import Facts
from ._scored import Scored, uniform
from ._state import Cache, State


class LocationAttention(Scored):
    r"""The query points at a position, whatever stands there: keys are not read.

    $$o_i = \sum_j \mathrm{softmax}_j\big((W q_i)_j + b_{ij}\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·N·K + L·M·V) for `length` N; memory L·N beside chunks of rows; N·K parameters a head.
    Use it:  as the baseline that content-based scores must beat, and where order alone decides.
    Avoid it: where inputs are longer than in training: positions it never saw have untrained rows of W.
    Limits:  at most `length` keys. Keys that are not allowed are left out before the softmax, so short rows sum to one.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (location).
    We differ: positions count from the first key; the paper reads the source backwards.
    """

    facts = Facts(
        name="location",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        formula="softmax(Wq) v",
        time="L·M·K",
        memory="L·M",
        positional=True,
    )

    def __init__(self, *, width: int, length: int, heads: int = 1):
        super().__init__()
        self.heads, self.width, self.length = heads, width, length
        self.w_HKN = uniform(heads, width, length, fan=width)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width, length=length)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return torch.einsum("blhk,hkn->blhn", q_BLHK, self.w_HKN), k_BMHK

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, place_BM: Tensor) -> Tensor:
        at_BHLM = place_BM.clamp(0, self.length - 1)[:, None, None]  # what a row forgot is out of range, and forbidden
        B, L, H, _ = q_BLHK.shape
        return q_BLHK.transpose(1, 2).gather(-1, at_BHLM.expand(B, H, L, -1))

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
        keys = k_BMHK.shape[1]
        if isinstance(state, Cache):
            keys += state.length
        if keys > self.length:
            raise ShapeError(
                f"LocationAttention has a score for {self.length} positions and was given {keys} keys; make it with length={keys}, "
                "or use GeneralAttention, which takes any number"
            )

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        return Cache(batch)  # keeps every key, whatever the pattern: weights are asked for by place, and there are at most `length`

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, length={self.length}"

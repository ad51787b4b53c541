"""Strided attention: every query looks at every n-th key, counted from itself."""

from __future__ import annotations

from math import isqrt
from typing import Self, Unpack

from torch import Tensor

from ..kernels import Bias
from ..patterns import Pattern, full, stride
from ._base import Facts
from ._patterned import Options, Patterned, in_columns
from ._state import State


class StridedAttention(Patterned):
    r"""The keys a multiple of `step` away: the column of the query, if the sequence is written in rows of `step`.

    $$o_i = \sum_{(i - j) \bmod s = 0} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·M·K/s), memory O(L·K). Under `full` and `causal` each column is one dense call; otherwise, and with a bias,
             tiles, which find little to leave out.
    Use it:  beside local attention, in other heads or layers: it carries what a window cannot. On data with that period.
    Avoid it: alone: positions of different columns never meet.
    Limits:  within one sequence.
    Paper:   Child et al. 2019, "Generating long sequences with sparse transformers", arXiv:1904.10509, section 4.3 (the second
             factor of strided attention).
    """

    facts = Facts(
        name="strided",
        year=2019,
        title="Generating long sequences with sparse transformers",
        paper="arXiv:1904.10509",
        formula="softmax(q·k / √K) v,  (i − j) mod s = 0",
        time="L·M·K/s",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, step: int = 128, **options: Unpack[Options]):
        super().__init__(stride(step), **options)
        self.step = step

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(2, isqrt(length)))

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        if not self._plain(pattern, bias, state):
            return super().forward(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern)
        return in_columns(lambda q, k, v: self._average(q, k, v, pattern), self.step, q_BLHK, k_BMHK, v_BMHV)

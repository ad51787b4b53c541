"""Dilated attention: a window with gaps, which may differ from head to head."""

from __future__ import annotations

from itertools import groupby
from typing import Self, Unpack

from torch import Tensor

from ..kernels import Bias
from ..patterns import Pattern, dilated, full, per_head, window
from ._base import Facts
from ._patterned import Look, Options, Patterned, by_heads, in_columns
from ._state import State


class DilatedAttention(Patterned):
    r"""A window that takes every `step`-th key only, `radius` of them to either side.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ i + s\,n : -r \le n \le r \}$$

    Cost:    time O(L·r·K), memory O(L·K), whatever the step: under `full` and `causal` the keys of one remainder are laid side by
             side, and the gaps are gone. Otherwise, and with a bias, tiles, which pay for the gaps.
    Use it:  to see s times as far as a window of the same cost; in some heads only, as `steps`, one a head.
    Avoid it: with the same step in all heads and layers: positions of different remainders then never meet.
    Limits:  within one sequence. With `steps` the number of heads is fixed.
    Paper:   Beltagy et al. 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1 (dilated sliding
             window), there for two heads of the upper layers.
    """

    facts = Facts(
        name="dilated",
        year=2020,
        title="Longformer: the long-document transformer",
        paper="arXiv:2004.05150",
        formula="softmax(q·k / √K) v,  i − j = s·n, |n| ≤ r",
        time="L·r·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, radius: int = 128, steps: int | tuple[int, ...] = 2, **options: Unpack[Options]):
        steps = (steps,) if isinstance(steps, int) else tuple(steps)
        rules = [dilated(radius, step) for step in steps]
        super().__init__(rules[0] if len(rules) == 1 else per_head(*rules), **options)
        self.radius, self.steps = radius, steps

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(1, length // 32))  # reaches as far as LocalAttention.sized

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
        near = pattern & window(self.radius)

        def look_by(step: int) -> Look:
            return lambda q, k, v: in_columns(lambda q, k, v: self._average(q, k, v, near), step, q, k, v)

        runs = [(len(list(same)), look_by(step)) for step, same in groupby(self.steps)]
        return by_heads(runs, q_BLHK, k_BMHK, v_BMHV)

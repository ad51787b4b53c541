"""Dilated attention: a window with gaps, whose size may differ per head."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Self, Unpack

from msgspec import Meta
from torch import Tensor

from ..bounds import Count, Size
from ..patterns import dilated, per_head, window
from ._base import Call, Paper
from ._pattern import Attend, PatternAttention, PatternFacts, SoftmaxOptions, attend_columns, attend_head_groups

Steps = Annotated[tuple[Size, ...], Meta(min_length=1)]  # one per head


class DilatedAttention(PatternAttention):
    r"""A window with gaps: every s-th key, `radius` of them on either side.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ i + s\,n : -r \le n \le r \}$$

    Cost:    time O(L·r·K), memory O(L·K), whatever the step: under `full` and `causal`, keys of the same remainder mod
             s are made contiguous, so there are no gaps. Other patterns and biases use tiles, which pay for the gaps.
    Use it:  to reach s times as far as a window of the same cost; in some heads only, with one of `steps` per head.
    Avoid it: with the same step in all heads and layers: positions of different remainders then never interact.
    Limits:  self-attention only. With several `steps` the number of heads is fixed.
    Args:
        radius: keys on either side, gaps not counted.
        steps: distance between neighbouring keys, for all heads or one per head.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Beltagy et al. 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1
             (dilated sliding window; there in two heads of the upper layers).
    """

    facts = PatternFacts(
        name="dilated",
        paper=Paper("Longformer: the long-document transformer", 2020, "arXiv:2004.05150"),
        formula="softmax(q·k / √K) v,  i − j = s·n, |n| ≤ r",
        time="L·r·K",
        memory="L·K",
    )

    def __init__(self, radius: Count = 128, steps: Size | Steps = 2, **options: Unpack[SoftmaxOptions]):
        steps = (steps,) if isinstance(steps, int) else tuple(steps)
        rules = [dilated(radius, step) for step in steps]
        super().__init__(rules[0] if len(rules) == 1 else per_head(*rules), **options)
        self.radius, self.steps = radius, steps

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(max(1, length // 32))  # reaches as far as LocalAttention.sized

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        direction = self._direction(call)
        if direction is None:
            return super()._forward(q_BLHK, k_BMHK, v_BMHV, call)
        near = direction & window(self.radius)

        def attend_by(step: int) -> Attend:
            return lambda q, k, v: attend_columns(lambda q, k, v: self._attend(q, k, v, near), step, q, k, v)

        groups = [(len(list(same)), attend_by(step)) for step, same in groupby(self.steps)]
        return attend_head_groups(groups, q_BLHK, k_BMHK, v_BMHV)

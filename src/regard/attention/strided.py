"""Strided attention: each query attends to every n-th key, counted from itself."""

from __future__ import annotations

from math import isqrt
from typing import Self, Unpack

from ..bounds import Size
from ..patterns import stride
from ._base import Paper
from ._pattern import ColumnPatternAttention, PatternFacts, SoftmaxOptions


class StridedAttention(ColumnPatternAttention):
    r"""The keys at multiples of `step` from the query: its column, if the sequence is written in rows of `step`.

    $$o_i = \sum_{(i - j) \bmod s = 0} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·M·K/s), memory O(L·K). Under `full` and `causal` each column is one dense call; other patterns
             and biases use tiles, few of which can be skipped.
    Use it:  together with local attention, in other heads or layers, for what a window cannot reach; on data with that period.
    Avoid it: alone: positions in different columns never interact.
    Limits:  self-attention only.
    Args:
        step: distance s between the keys that a query attends to.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Child et al. 2019, "Generating long sequences with sparse transformers", arXiv:1904.10509, section 4.3 (the second
             factor of strided attention).
    """

    facts = PatternFacts(
        name="strided",
        paper=Paper("Generating long sequences with sparse transformers", 2019, "arXiv:1904.10509"),
        formula="softmax(q·k / √K) v,  (i − j) mod s = 0",
        time="L·M·K/s",
        memory="L·K",
    )

    def __init__(self, step: Size = 128, **options: Unpack[SoftmaxOptions]):
        super().__init__(stride(step), step, **options)
        self.step = step

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(max(2, isqrt(length)))

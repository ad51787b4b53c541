"""Local attention: each query attends to its neighbourhood."""

from __future__ import annotations

from typing import Self, Unpack

from ..bounds import Count
from ..patterns import window
from ._base import Paper
from ._pattern import PatternAttention, PatternFacts, SoftmaxOptions, sized_radius


class LocalAttention(PatternAttention):
    r"""A sliding window of `radius` keys on either side of the query.

    $$o_i = \sum_{|i - j| \le r} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·r·K), memory O(L·K).
    Use it:  for long sequences in which neighbours matter most; n layers reach n·r positions. Streams with a cache of 2·r keys.
    Avoid it: where a distant token matters; LongformerAttention adds global tokens.
    Limits:  self-attention only. Distance `radius` is included: 2·radius + 1 keys, radius + 1 under `causal`.
    Args:
        radius: keys on either side of the query.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, section 4 and table 1 (restricted).
             For windows that grow with depth (Sukhbaatar et al. 2019), set another `radius` in each layer.
    """

    facts = PatternFacts(
        name="local",
        paper=Paper("Attention is all you need", 2017, "arXiv:1706.03762"),
        formula="softmax(q·k / √K) v,  |i − j| ≤ r",
        time="L·r·K",
        memory="L·K",
    )

    def __init__(self, radius: Count = 128, **options: Unpack[SoftmaxOptions]):
        super().__init__(window(radius), **options)
        self.radius = radius

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(sized_radius(length))

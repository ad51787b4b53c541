"""Longformer: a sliding window and a few global tokens."""

from __future__ import annotations

from typing import Annotated, Self, Unpack

from msgspec import Meta

from ..bounds import MOST, Count
from ..patterns import tokens, window
from ._base import Paper
from ._pattern import PatternAttention, PatternFacts, SoftmaxOptions, sized_radius

# so they mean the same under any padding, and while a sequence grows
FromStart = Annotated[
    int, Meta(ge=0, le=MOST, description="counted from the start; SoftmaxAttention under tokens(…) counts from the end, too")
]


class LongformerAttention(PatternAttention):
    r"""A window of `radius` keys on either side, plus global tokens, which attend to all and are attended to by all.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : |i - j| \le r \,\lor\, i \in G \,\lor\, j \in G \}$$

    Cost:    time O(L·(r + |G|)·K), memory O(L·K).
    Use it:  to encode long documents: any two positions are two steps apart, via a global token. Make the class
             token global, or the words of a question.
    Avoid it: for generation: under `causal`, global tokens do not attend to what comes after them.
    Limits:  self-attention only. The same tokens in all batch rows, counted from the start; where they differ per
             row, use SoftmaxAttention with `window(r) | keep(mask_B11M) | keep(mask_B1M1)`.
    Args:
        radius: keys on either side of the query.
        at: positions G of the global tokens, counted from the start.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1.
    We differ: global tokens share the projections of the rest; the layer `LongformerHeads` gives them their own.
             The radius is per side: the paper's window of 512 is a radius of 256.
    """

    facts = PatternFacts(
        name="longformer",
        paper=Paper("Longformer: the long-document transformer", 2020, "arXiv:2004.05150"),
        formula="softmax(q·k / √K) v,  |i − j| ≤ r or i ∈ G or j ∈ G",
        time="L·(r + G)·K",
        memory="L·K",
    )

    def __init__(self, radius: Count = 256, at: tuple[FromStart, ...] = (0,), **options: Unpack[SoftmaxOptions]):
        super().__init__(window(radius) | tokens(*at), **options)
        self.radius, self.at = radius, at

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(sized_radius(length))

"""Longformer: a sliding window, and a few tokens that see, and are seen by, all."""

from __future__ import annotations

from typing import Self, Unpack

from ..errors import ShapeError
from ..patterns import tokens, window
from ._base import Facts
from ._patterned import Options, Patterned


class LongformerAttention(Patterned):
    r"""A window of `radius` keys to either side, and global tokens: they look everywhere, and all look at them.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : |i - j| \le r \,\lor\, i \in G \,\lor\, j \in G \}$$

    Cost:    time O(L·(r + |G|)·K), memory O(L·K).
    Use it:  to read long documents: two steps by way of a global token join any two positions. Put it on the class token,
             or on the words of a question.
    Avoid it: for generation: under `causal` global tokens do not see what comes after them, only the others them.
    Limits:  within one sequence. The same tokens in all batch rows, counted from the start; where they differ by row, give
             SoftmaxAttention `window(r) | keep(mask_B11M) | keep(mask_B1M1)`.
    Paper:   Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1.
    We differ: global tokens share the projections of the rest; with projections of their own it is a layer, `LongformerHeads`.
             Windows are counted a side: the paper's 512 is a radius of 256.
    """

    facts = Facts(
        name="longformer",
        year=2020,
        title="Longformer: the long-document transformer",
        paper="arXiv:2004.05150",
        formula="softmax(q·k / √K) v,  |i − j| ≤ r or i ∈ G or j ∈ G",
        time="L·(r + G)·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, radius: int = 256, at: tuple[int, ...] = (0,), **options: Unpack[Options]):
        super().__init__(window(radius) | tokens(*from_start(type(self).__name__, at)), **options)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(1, length // 16))


def from_start(name: str, at: tuple[int, ...]) -> tuple[int, ...]:
    """Positions that mean the same whatever the padding, and while a sequence grows."""
    if any(position < 0 for position in at):
        raise ShapeError(f"{name} counts global tokens from the start, got {at}; from the end: SoftmaxAttention with tokens{at}")
    return at

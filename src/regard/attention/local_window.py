"""Local attention: every query looks at its neighbourhood."""

from __future__ import annotations

from typing import Self, Unpack

from ..patterns import window
from ._base import Facts
from ._patterned import Options, Patterned


class LocalAttention(Patterned):
    r"""A window that slides along with the query, `radius` keys to either side.

    $$o_i = \sum_{|i - j| \le r} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·r·K), memory O(L·K).
    Use it:  for long sequences in which neighbours matter most; n layers see n·r far. It streams with a cache of 2·r keys.
    Avoid it: where one far token decides; LongformerAttention adds tokens that see, and are seen by, all.
    Limits:  within one sequence. Distance `radius` is still seen: 2·radius + 1 keys, radius + 1 under `causal`.
    Paper:   Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, section 4 and table 1 (restricted).
             Windows that grow with depth (Sukhbaatar et al. 2019) are another `radius` in each layer.
    """

    facts = Facts(
        name="local",
        year=2017,
        title="Attention is all you need",
        paper="arXiv:1706.03762",
        formula="softmax(q·k / √K) v,  |i − j| ≤ r",
        time="L·r·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, radius: int = 128, **options: Unpack[Options]):
        super().__init__(window(radius), **options)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(1, length // 16))  # an eighth of the keys, as 512 of 4,096 in Longformer

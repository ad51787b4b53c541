"""Streaming attention: a sliding window plus the first tokens, which act as attention sinks."""

from __future__ import annotations

from typing import Annotated, Self, Unpack

from msgspec import Meta

from ..bounds import Count
from ..patterns import to_tokens, window
from ._base import Paper
from ._pattern import PatternAttention, PatternFacts, SoftmaxOptions, sized_radius

Sinks = Annotated[int, Meta(ge=0, le=2**16)]  # each is a rule of its own


class StreamingAttention(PatternAttention):
    r"""The last `back` keys and the first `first` ones, on which models trained with softmax place surplus weight.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : |i - j| \le w \,\lor\, j < n \}$$

    Cost:    time O(L·(w + n)·K), memory O(L·K); a stream needs a cache of at most n + 2·w keys, however long it is.
    Use it:  with `causal`, to run a model indefinitely. A window alone breaks a trained model as soon as the first token leaves it.
    Avoid it: where tokens that have left the window are needed again.
    Limits:  self-attention only. A row of a state that is reset has no first tokens any more: start another state.
    Args:
        back: keys w before the query (without `causal`, on either side).
        first: number n of first keys that stay visible.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Xiao et al. 2023, "Efficient streaming language models with attention sinks", arXiv:2309.17453, section 3.2.
    We differ: positions are those of the sequence. The paper counts them inside the cache, which concerns the
             positional encoding: with a relative one, such as ALiBi or rotary, only the first tokens differ.
    """

    facts = PatternFacts(
        name="streaming",
        paper=Paper("Efficient streaming language models with attention sinks", 2023, "arXiv:2309.17453"),
        formula="softmax(q·k / √K) v,  |i − j| ≤ w or j < n",
        time="L·(w + n)·K",
        memory="L·K",
    )

    def __init__(self, back: Count = 1024, first: Sinks = 4, **options: Unpack[SoftmaxOptions]):
        super().__init__(window(back) | to_tokens(*range(first)), **options)
        self.back, self.first = back, first

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(sized_radius(length))

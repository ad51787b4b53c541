"""A sliding window that never lets go of the first tokens."""

from __future__ import annotations

from typing import Self, Unpack

from ..patterns import to_tokens, window
from ._base import Facts
from ._patterned import Options, Patterned


class StreamingAttention(Patterned):
    r"""The last `back` keys and the first `first` ones, on which models trained with softmax lay the weight they have to spare.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : |i - j| \le w \,\lor\, j < n \}$$

    Cost:    time O(L·(w + n)·K), memory O(L·K); going step by step a cache of n + 2·w keys at most, however long the stream.
    Use it:  with `causal`, to let a model run on for ever. A window alone breaks a trained model as soon as the first token leaves.
    Avoid it: where what has left the window will be asked for.
    Limits:  within one sequence. A row of a state that is reset has no first tokens any more: begin another state.
    Paper:   Xiao et al. 2023, "Efficient streaming language models with attention sinks", arXiv:2309.17453, section 3.2.
    We differ: positions are those of the sequence. The paper counts them inside the cache, which is a matter of the position scheme:
             with one that knows distances only, such as ALiBi or rotary, it differs for the first tokens alone.
    """

    facts = Facts(
        name="streaming",
        year=2023,
        title="Efficient streaming language models with attention sinks",
        paper="arXiv:2309.17453",
        formula="softmax(q·k / √K) v,  |i − j| ≤ w or j < n",
        time="L·(w + n)·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, back: int = 1024, first: int = 4, **options: Unpack[Options]):
        super().__init__(window(back) | to_tokens(*range(first)), **options)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(1, length // 16))

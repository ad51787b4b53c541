"""BigBird: neighbours, global blocks, and some blocks drawn at random."""

from __future__ import annotations

from typing import Self, Unpack

from ..patterns import Pattern, block_window, random_blocks, token_blocks
from ._base import Facts
from ._patterned import Options, Patterned


class BigBirdAttention(Patterned):
    r"""Blocks of queries see the blocks beside them, `random` blocks drawn for each head, and the first and the last one, which see all.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \mathrm{window}(i) \cup \mathrm{global}(i) \cup \mathrm{random}(i)$$

    Cost:    time O(L·c·(3 + 2 + n)·K) for blocks of c and n random ones, memory O(L·K).
    Use it:  to read long documents when no token is known to deserve a global look.
    Avoid it: for generation: it needs the end of the sequence. Of some 500 tokens or fewer it sees everything.
    Limits:  within one sequence; not step by step. Which block is the last, and the draw, follow from the number of keys, padding
             included, so padded to another length a text is seen otherwise. With random blocks the number of heads is fixed.
    Paper:   Zaheer et al. 2020, "Big Bird: transformers for longer sequences", arXiv:2007.14062, section 2 (BigBird-ITC).
    We differ: random blocks are drawn among all, so now and then one falls on a block that is seen anyway. The draw is the same at
             every call, from `seed`; give layers different ones. Lengths need not be multiples of the block.
    """

    facts = Facts(
        name="bigbird",
        year=2020,
        title="Big Bird: transformers for longer sequences",
        paper="arXiv:2007.14062",
        formula="softmax(q·k / √K) v,  j in window, global or random blocks",
        time="L·(5 + n)·c·K",
        memory="L·K",
        cross=False,
        streaming=False,
        positional=True,
        by_length=True,
    )

    def __init__(self, heads: int, *, block: int = 64, random: int = 3, seed: int = 0, **options: Unpack[Options]):
        own: Pattern = block_window(block, 1) | token_blocks(block, 0, -1)
        if random:
            own = own | random_blocks(random, block, seed, heads)
        super().__init__(own, **options)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads, block=max(2, length // 64))  # 64 blocks, as 4,096 tokens have in the paper

"""BigBird: neighbouring blocks, global blocks and random blocks."""

from __future__ import annotations

from typing import Self, Unpack

from ..bounds import Count, Heads, Seed, Size
from ..errors import ShapeError
from ..patterns import Pattern, block_window, random_blocks, token_blocks
from ..patterns.blocks import longer_than
from ._base import Paper
from ._pattern import PatternAttention, PatternFacts, SoftmaxOptions


class BigBirdAttention(PatternAttention):
    r"""Blocks attend to their neighbours, to `random` random blocks per head, and to the first and last, which attend to all.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \mathrm{window}(i) \cup \mathrm{global}(i) \cup \mathrm{random}(i)$$

    Cost:    time O(L·c·(3 + 2 + n)·K) for blocks of c keys and n random blocks, memory O(L·K).
    Use it:  to encode long documents when no particular token should be global.
    Avoid it: for generation: it needs the end of the sequence. Up to about 500 tokens it attends to everything.
    Limits:  self-attention only; no streaming. The last block and the random blocks depend on the number of keys, padding
             included, so a text padded to another length gets another pattern. With random blocks the number of heads is fixed.
    Args:
        heads: number of heads, each with its own random blocks; None: any number, if `random` is 0.
        block: tokens per block.
        random: random blocks per block of queries and head.
        seed: seed of the random blocks.
        dense: number of tokens up to which attention is dense; 0: never.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Zaheer et al. 2020, "Big Bird: transformers for longer sequences", arXiv:2007.14062, section 2 (BigBird-ITC).
    We differ: random blocks are drawn from all blocks, so one may coincide with a block that is attended to anyway. The draw is
             the same at every call; use different `seed`s in different layers. Lengths need not be multiples of the block size.
    """

    facts = PatternFacts(
        name="bigbird",
        paper=Paper("Big Bird: transformers for longer sequences", 2020, "arXiv:2007.14062"),
        formula="softmax(q·k / √K) v,  j in window, global or random blocks",
        time="L·(5 + n)·c·K",
        memory="L·K",
        state=None,
    )

    def __init__(
        self,
        *,
        heads: Heads | None = None,
        block: Size = 64,
        random: Count = 3,
        seed: Seed = 0,
        dense: Count = 0,
        **options: Unpack[SoftmaxOptions],
    ):
        if random and heads is None:
            raise ShapeError(f"BigBirdAttention draws {random} random blocks per head: pass heads=…, or random=0")
        own: Pattern = block_window(block, 1) | token_blocks(block, 0, -1)
        if random:
            own = own | random_blocks(random, block, seed, heads or 1)
        super().__init__(longer_than(dense, own) if dense else own, **options)
        self.heads, self.block, self.random, self.seed, self.dense = heads, block, random, seed, dense

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(heads=heads, block=min(64, max(2, length // 64)))  # 64 blocks, then blocks of 64, as the 4,096 tokens of the paper

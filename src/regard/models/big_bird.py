r"""BigBird: BERT for long documents. Blocks of tokens attend to neighbouring blocks, to the first and last block, and to random ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import BigBirdAttention
from ..kernels import Bias
from ..layers import MultiHead, Position
from ..layers.positions import Offset
from .encoder import Encoder, HeadsConfig
from .model import Count, ModelFacts, Probability, Size


@dataclass(frozen=True, kw_only=True)
class BigBirdConfig(HeadsConfig):
    max_length: Size = 4096
    block: Size = 64  # tokens per block
    random: Count = 3  # random blocks per block of queries
    drawn: bool = True  # False: the first block is counted once more for each instead, as transformers does in evaluation
    seed: Count = 1  # seed of the random blocks
    attention_dropout: Probability = 0.1  # dropout rate of attention weights
    activation: str = "gelu_tanh"

    @property
    def short(self) -> int:
        """Up to this many tokens attention is full: the blocks would cover most pairs anyway."""
        return (5 + 2 * self.random) * self.block


class BigBird(Encoder):
    """BERT with `BigBirdAttention` from (5 + 2·random)·block tokens on, and full attention below.

    Cost:    time O(L·(5 + n)·c·D + L·D·F) per layer for n random blocks of c, memory O(L·D).
    Use it:  for documents of thousands of tokens without a natural choice of global tokens.
    Avoid it: below about 700 tokens, where it is BERT.
    Limits:  at most `max_length` tokens. The last block is that of the padded sequence, so the padded length matters.
    Paper:   Zaheer et al. 2020, "Big Bird: transformers for longer sequences", arXiv:2007.14062.
    We differ: random blocks are those of `BigBirdAttention`, the same at every call; transformers draws new ones in training and none
             in evaluation, where the first block takes their place and counts 1 + n times. `drawn=False`, the setting of imported
             models, does the same.
    """

    facts = ModelFacts(name="big_bird", year=2020, title="Big Bird: transformers for longer sequences", paper="arXiv:2007.14062")
    Config = BigBirdConfig
    config: BigBirdConfig

    def _mixer(self, layer: int) -> MultiHead:
        c = self.config
        random = c.random if c.drawn else 0
        attention = BigBirdAttention(
            heads=c.heads, block=c.block, random=random, seed=c.seed + layer, dense=c.short, dropout=c.attention_dropout
        )
        return MultiHead(c.width, c.heads, attention, position=None if c.drawn or not c.random else _FirstAgain(c.block, c.random, c.short))


class _FirstAgain(Position):
    """Each key of the first block counts 1 + `times` times, for all queries but those of the first and last block."""

    def __init__(self, block: int, times: int, short: int):
        super().__init__()
        self.block, self.times, self.short = block, times, short

    def encode(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Offset, k_from: Offset) -> tuple[Tensor, Tensor, Bias | None]:
        M = k_BMHK.shape[1]
        return q_BLHK, k_BMHK, None if self.short >= M else _Again(self.block, self.times, (math.ceil(M / self.block) - 1) * self.block)


class _Again(Bias):
    def __init__(self, block: int, times: int, last: int):
        self.block, self.more, self.last = block, math.log(1 + times), last

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        counted = (j < self.block) & ((i >= self.block) & (i < self.last))[:, None]
        return torch.where(counted, self.more, 0.0)[None]

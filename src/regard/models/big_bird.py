r"""BigBird: BERT for long documents. Blocks of tokens see the blocks beside them, the first and the last one, and some drawn at random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import BigBirdAttention
from ..kernels import Bias
from ..layers import MultiHead, Position
from ..layers.positions import Place
from ..patterns import Pattern, full
from ._encoder import Encoder, HeadsConfig
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class BigBirdConfig(HeadsConfig):
    length: int = 4096
    block: int = 64
    random: int = 3  # blocks drawn a block of queries
    drawn: bool = True  # False: in their place the first block counts once more each, as transformers does when it evaluates
    seed: int = 1
    attention_dropout: float = 0.1
    activation: str = "gelu_tanh"

    @property
    def short(self) -> int:
        """Up to so many tokens all see all: the blocks would cover most pairs anyway."""
        return (5 + 2 * self.random) * self.block


class BigBird(Encoder):
    """BERT's blocks, looking by `BigBirdAttention` from (5 + 2·random)·block tokens on, and fully below.

    Cost:    time O(L·(5 + n)·c·D + L·D·F) a layer for n random blocks of c, memory O(L·D).
    Use it:  for documents of thousands of tokens when no token is known to deserve a global look.
    Avoid it: below some 700 tokens, where it is BERT.
    Limits:  at most `length` tokens. The last block is counted with the padding, so the length a batch is padded to matters.
    Paper:   Zaheer et al. 2020, "Big Bird: transformers for longer sequences", arXiv:2007.14062.
    We differ: random blocks are those of `BigBirdAttention`, the same at every call; transformers draws others while it trains, and none
             when it evaluates: there the first block stands in their place, so it counts 1 + n times. `drawn=False`, which an imported
             model has, does the same.
    """

    facts = ModelFacts(name="big_bird", year=2020, title="Big Bird: transformers for longer sequences", paper="arXiv:2007.14062")
    Config = BigBirdConfig
    config: BigBirdConfig

    def _mixer(self, layer: int) -> MultiHead:
        c = self.config
        random = c.random if c.drawn else 0
        attention = BigBirdAttention(c.heads, block=c.block, random=random, seed=c.seed + layer, dropout=c.attention_dropout)
        attention.own = _Longer(c.short, attention.own)
        return MultiHead(c.width, c.heads, attention, position=None if c.drawn or not c.random else _FirstAgain(c.block, c.random, c.short))


@dataclass(frozen=True, repr=False)
class _Longer(Pattern):
    """`rule` for sequences of more than `short` keys, everything for others."""

    short: int
    rule: Pattern

    def fit(self, queries: int, keys: int) -> Pattern:
        return full if keys <= self.short else self.rule.fit(queries, keys)

    @property
    def heads(self) -> int:
        return self.rule.heads


class _FirstAgain(Position):
    """Each key of the first block counts 1 + `times`, for all queries but those of the first and the last block."""

    def __init__(self, block: int, times: int, short: int):
        super().__init__()
        self.block, self.times, self.short = block, times, short

    def place(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Place, k_from: Place) -> tuple[Tensor, Tensor, Bias | None]:
        M = k_BMHK.shape[1]
        return q_BLHK, k_BMHK, None if self.short >= M else _Again(self.block, self.times, (math.ceil(M / self.block) - 1) * self.block)


class _Again(Bias):
    def __init__(self, block: int, times: int, last: int):
        self.block, self.more, self.last = block, math.log(1 + times), last

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        counted = (j < self.block) & ((i >= self.block) & (i < self.last))[:, None]
        return torch.where(counted, self.more, 0.0)[None]

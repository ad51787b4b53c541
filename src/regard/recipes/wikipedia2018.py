"""Attention to keys that a strided convolution merges: what three in one still hold, nine in one do not.

Paper: Liu et al. 2018, "Generating Wikipedia by summarizing long sequences", arXiv:1801.10198, section 4.2.3 (there a third of the keys,
       alternating with local attention, lets the model read 11,000 tokens instead of 4,000, and makes better summaries).
Run:   regard run wikipedia2018        Takes: a quarter of an hour on one CPU core; three seeds of five small models.

Recall: sixteen keys with values, then the keys in another order, all tokens attend to all; two layers, two heads of 16, a short convolution before every
mechanism. One, three or nine keys are merged into one. The ablation merges by a mean that is not trained.
"""

from __future__ import annotations

from functools import partial

import torch

from ..attention import MemoryCompressedAttention
from ._engine import Claim, Recipe, RecipeFacts, above, measured, validation_curves
from ._engine.puzzles import Recall
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

HEAD_DIM, FACTORS = WIDTH // HEADS, (1, 3, 9)
MEAN, ALL = "3 keys in one, mean", "all keys"


class MeanCompressed(MemoryCompressedAttention):
    """The ablation: the mean of neighbouring keys, and of their values."""

    def __init__(self, stride: int):
        super().__init__(head_dim=HEAD_DIM, heads=HEADS, stride=stride)
        with torch.no_grad():
            self.w_HSKK.copy_(torch.eye(HEAD_DIM).expand_as(self.w_HSKK) / stride)
        self.requires_grad_(False)


def name(factor: int) -> str:
    return f"{factor} key{'s' * (factor > 1)} in one"


def variant(heads: Heads) -> StackVariant:
    return StackVariant(puzzle=Recall(), mixer=heads, convolution=3, train=puzzle_training(600))


def compressed(factor: int) -> StackVariant:
    return variant(Heads(attention=partial(MemoryCompressedAttention, head_dim=HEAD_DIM, heads=HEADS, stride=factor)))


recipe = Recipe(
    facts=RecipeFacts(
        "wikipedia2018", 2018, "Generating Wikipedia by summarizing long sequences", "arXiv:1801.10198", "a quarter of an hour"
    ),
    question="How many neighbouring keys can a learned convolution merge into one?",
    variants={
        **{name(factor): compressed(factor) for factor in FACTORS},
        MEAN: variant(Heads(attention=partial(MeanCompressed, 3))),
        ALL: variant(Heads()),
    },
    claims=(
        Claim(
            "three keys in one: at most 5 points below all keys",
            measured(name(3)) - measured(ALL) >= -0.05,
            source="section 4.2.3",
            learned=(measured(ALL) >= 0.95,),
        ),
        above("nine in one: at least 10 points below three", name(3), name(9), 0.1),
        above("a learned convolution is above the mean of three keys", name(3), MEAN, source="section 4.2.3"),
    ),
    pictures=(validation_curves("accuracy"),),
)

"""A window attends to its neighbourhood; with one global token, any token reaches any other in two layers.

Paper: Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1 (there documents,
       here one informative token in a hundred and twenty-eight).
Run:   regard run longformer2020        Takes: about fifteen minutes on two CPU cores; three seeds of four small models.

The question is at the first position, the answer anywhere from position 20 on; windows of 4 to either side and two layers reach 8. Random
keys, as many per query as a window has on one side, are BigBird's other way to shorten paths.
"""

from __future__ import annotations

from functools import partial

from ..attention import LocalAttention, LongformerAttention
from ..patterns import Pattern, full, random_blocks, window
from ._engine import AttentionMaps, Recipe, RecipeFacts, at_least, at_most, below, validation_curves
from ._engine.puzzles import Needle
from ._engine.stacks import Heads, StackVariant, puzzle_training

RADIUS = 4
FAR, NEAR, RANDOM, ALL = "window and global token", "window", "window and random keys", "all keys"


def variant(heads: Heads, pattern: Pattern = full) -> StackVariant:
    return StackVariant(puzzle=Needle(), mixer=heads, pattern=pattern, train=puzzle_training(300))


VARIANTS = {
    FAR: variant(Heads(attention=partial(LongformerAttention, RADIUS))),
    NEAR: variant(Heads(attention=partial(LocalAttention, RADIUS))),
    RANDOM: variant(Heads(), window(RADIUS) | random_blocks(1, RADIUS)),
    ALL: variant(Heads()),
}

recipe = Recipe(
    facts=RecipeFacts("longformer2020", 2020, "Longformer: the long-document transformer", "arXiv:2004.05150", "about fifteen minutes"),
    question="Can a window find what lies outside of it, with and without a global token?",
    variants=VARIANTS,
    claims=(
        at_least("window and global token: at least 95 % of the needles found", 0.95, FAR),
        at_most("the window alone: at most 20 %, where one in eight is chance", 0.2, NEAR, kind="control"),
        below("random keys instead of the global token: at least 30 points below it", RANDOM, FAR, 0.3),
    ),
    pictures=(
        validation_curves("accuracy"),
        AttentionMaps(variants={name: VARIANTS[name] for name in (FAR, NEAR, ALL)}, layers=(0, 1), columns=2),
    ),
)

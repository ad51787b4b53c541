"""A window sees the neighbours, a global block what is far, random blocks shorten paths: each does what the others do not.

Paper: Zaheer et al. 2020, "Big Bird: transformers for longer sequences", arXiv:2007.14062, section 2 and table 1 (there BERT's masked tokens: random
       blocks 60.1, window 58.3, both 62.7, all keys 64.2).
Run:   regard run bigbird2020        Takes: a quarter of an hour on one CPU core; three seeds of seven small models.

120 tokens, half of them digits; the first must tell the digit after a mark. Two layers, two heads of 16, blocks of 6: a window is a block and its
neighbours, the global blocks are the first, which holds the question, and the last; one or three random blocks per block and head. The window joins
the digit to its mark, the global block, or random blocks, bring it to the question.
"""

from __future__ import annotations

from functools import partial

from ..attention import BigBirdAttention
from ..patterns import Pattern, block_window, full, random_blocks, token_blocks
from ._engine import AttentionMaps, Claim, Recipe, RecipeFacts, at_least, measured, validation_curves
from ._engine.puzzles import Marked
from ._engine.stacks import HEADS, Heads, StackVariant, puzzle_training

BLOCK = 6
WINDOW, GLOBAL, RANDOM = block_window(BLOCK, 1), token_blocks(BLOCK, 0, -1), random_blocks(3, BLOCK, 0, HEADS)
BIGBIRD, ALL = "window, global, random", "all keys"
WITHOUT_WINDOW, WITHOUT_GLOBAL, WITHOUT_RANDOM = "global, random", "window, random", "window, global"
ONLY_WINDOW, ONLY_RANDOM = "window", "random"


def variant(pattern: Pattern = full, heads: Heads | None = None) -> StackVariant:
    return StackVariant(puzzle=Marked(length=120, distractors=0.5), mixer=heads or Heads(), pattern=pattern, train=puzzle_training(800))


VARIANTS = {
    BIGBIRD: variant(heads=Heads(attention=partial(BigBirdAttention, heads=HEADS, block=BLOCK, random=3))),
    ALL: variant(),
    WITHOUT_WINDOW: variant(GLOBAL | RANDOM),
    WITHOUT_GLOBAL: variant(WINDOW | RANDOM),
    WITHOUT_RANDOM: variant(WINDOW | GLOBAL),
    ONLY_WINDOW: variant(WINDOW),
    ONLY_RANDOM: variant(RANDOM),
}
recipe = Recipe(
    facts=RecipeFacts("bigbird2020", 2020, "Big Bird: transformers for longer sequences", "arXiv:2007.14062", "a quarter of an hour"),
    question="What do the window, the global blocks and the random blocks of BigBird contribute?",
    variants=VARIANTS,
    claims=(
        at_least("window, global and random blocks: at least 95 % right", 0.95, BIGBIRD),
        Claim(
            "BigBird is at most 2 points below all keys",
            measured(BIGBIRD) - measured(ALL) >= -0.02,
            source="table 1",
            learned=(measured(ALL) >= 0.95,),
        ),
        *(
            Claim(
                f"without {part}: at least 10 points below BigBird",
                measured(BIGBIRD) - measured(name) >= 0.1,
                source="section 2",
                learned=(measured(BIGBIRD) >= 0.95,),
            )
            for part, name in (("the window", WITHOUT_WINDOW), ("global blocks", WITHOUT_GLOBAL), ("random blocks", WITHOUT_RANDOM))
        ),
        Claim(
            "without global blocks, a window and random blocks are at least 10 points above either alone",
            *(measured(WITHOUT_GLOBAL) - measured(one) >= 0.1 for one in (ONLY_WINDOW, ONLY_RANDOM)),
            source="table 1",
        ),
    ),
    pictures=(
        validation_curves("accuracy"),
        AttentionMaps(variants={name: VARIANTS[name] for name in (BIGBIRD, WITHOUT_GLOBAL)}, layers=(0, 1), columns=2),
    ),
)

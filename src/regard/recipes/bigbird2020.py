"""Global blocks bring what is far to all, a window what is near; without global blocks, random ones and a window reach further than either.

Paper: Zaheer et al. 2020, "Big Bird: transformers for longer sequences", arXiv:2007.14062, section 2 and table 1 (there BERT's masked tokens: random
       blocks 60.1, window 58.3, both 62.7, all keys 64.2).
Run:   regard run bigbird2020        Takes: a quarter of an hour on one CPU core; three seeds of eleven small models.

Far: one informative token in 120, which all others must tell, two layers. Near: the token three positions before, one layer. Two heads of 16, blocks of
6: the window is a block and its neighbours, the global blocks are the first and the last, and there is one random block per block and head.
"""

from __future__ import annotations

from functools import partial

from ..attention import BigBirdAttention
from ..patterns import Pattern, block_window, full, random_blocks, token_blocks
from ._engine import AttentionMaps, Claim, Recipe, RecipeFacts, at_least, below, measured, validation_curves
from ._engine.puzzles import Lag, Puzzle, Spread
from ._engine.stacks import HEADS, Heads, StackVariant, puzzle_training

BLOCK, LENGTH, RANDOM_BLOCKS = 6, 120, 1
WINDOW, GLOBAL, RANDOM = block_window(BLOCK, 1), token_blocks(BLOCK, 0, -1), random_blocks(RANDOM_BLOCKS, BLOCK, 0, HEADS)
PATTERNS: dict[str, Pattern] = {
    "BigBird": full,  # the mechanism's own
    "all keys": full,
    "without window": GLOBAL | RANDOM,
    "without global": WINDOW | RANDOM,
    "without random": WINDOW | GLOBAL,
    "window": WINDOW,
    "random": RANDOM,
}
NEAR = ("BigBird", "all keys", "without window")
PUZZLES: dict[str, Puzzle] = {"far": Spread(length=LENGTH), "near": Lag(length=LENGTH, lag=3)}


def variant(task: str, name: str) -> StackVariant:
    heads = Heads(attention=partial(BigBirdAttention, heads=HEADS, block=BLOCK, random=RANDOM_BLOCKS)) if name == "BigBird" else Heads()
    depth, train = (2 if task == "far" else 1), puzzle_training(400)
    return StackVariant(puzzle=PUZZLES[task], mixer=heads, pattern=PATTERNS[name], depth=depth, train=train)


VARIANTS = {f"{task}, {name}": variant(task, name) for task, names in (("far", tuple(PATTERNS)), ("near", NEAR)) for name in names}
recipe = Recipe(
    facts=RecipeFacts("bigbird2020", 2020, "Big Bird: transformers for longer sequences", "arXiv:2007.14062", "a quarter of an hour"),
    question="What do the window, the global blocks and the random blocks of BigBird contribute?",
    variants=VARIANTS,
    claims=(
        at_least("far and near: BigBird at least 95 % right", 0.95, "far, BigBird", "near, BigBird"),
        *(
            Claim(
                f"{task}: BigBird is at most 2 points below all keys",
                measured(f"{task}, BigBird") - measured(f"{task}, all keys") >= -0.02,
                source="table 1",
                learned=(measured(f"{task}, all keys") >= 0.95,),
            )
            for task in PUZZLES
        ),
        below(
            "near: without the window at least 30 points below BigBird", "near, without window", "near, BigBird", 0.3, source="section 2"
        ),
        below(
            "far: without global blocks at least 10 points below BigBird", "far, without global", "far, BigBird", 0.1, source="section 2"
        ),
        Claim(
            "far, without global blocks: a window and random blocks are at least 10 points above either alone",
            *(measured("far, without global") - measured(f"far, {one}") >= 0.1 for one in ("window", "random")),
            source="table 1",
        ),
        below("far: without random blocks below BigBird", "far, without random", "far, BigBird", source="section 2"),
    ),
    pictures=(
        validation_curves("accuracy", "far"),
        validation_curves("accuracy", "near"),
        AttentionMaps(variants={name: VARIANTS[name] for name in ("far, BigBird", "far, without global")}, layers=(0, 1), columns=2),
    ),
)

"""Sorting blocks lets attention within one block copy from anywhere; balancing assigns the blocks one to one.

Paper: Tay, Bahri, Yang, Metzler & Juan 2020, "Sparse Sinkhorn attention", arXiv:2002.11296, sections 3 and 5 (there language, pictures
       and numbers to be sorted, here blocks).
Run:   regard run sinkhorn2020        Takes: about twenty minutes on two CPU cores; three seeds of six small models.

Copy: eight blocks of eight tokens; the target of each is another one, always the same. Order: eight blocks of four tokens; the target of the
u-th is the block with the u-th smallest of the numbers that blocks begin with. One layer, so that nothing is relayed by a third
block. Ablations: the own block alone; no balancing, so that rows sum to one and columns to anything; a high temperature, which mixes blocks
instead of sorting them. To copy, balancing is not needed: each block finds its own by a softmax over blocks, and that metric is reported
without a claim. To order, it should be: a block compares itself with the others one at a time, and which is the u-th depends on all of them.
In training, larger queries and keys make up for a high temperature; the same parameters at another temperature cannot.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..attention import SinkhornAttention
from ..patterns import Pattern, block, full
from ._engine import AttentionMaps, Claim, Curves, Recipe, RecipeFacts, at_least, at_most, below, validation_curves
from ._engine.puzzles import Blocks, Puzzle, Ranked
from ._engine.stacks import Heads, StackVariant, puzzle_training

COPY, ORDER = Blocks(block=8), Ranked(block=4)
SORTED, OWN, FREE = "copy, sorted blocks", "copy, own block alone", "copy, without balancing"
RANKED, LOOSE, WARM = "order, sorted blocks", "order, without balancing", "order, temperature 10"
HEATED = "heated"  # to temperature 10, after training
ROUNDS = (0, 1, 2, 4, 8, 16)


def variant(puzzle: Puzzle, heads: Heads, pattern: Pattern = full, **more: Any) -> StackVariant:
    train = puzzle_training(2400, 2e-2) if puzzle is ORDER else puzzle_training(1200)  # with 1e-2 one seed of three learns no order
    return StackVariant(puzzle=puzzle, mixer=heads, pattern=pattern, depth=1, train=train, **more)


def sinkhorn(puzzle: Blocks | Ranked, **settings: Any) -> Heads:
    return Heads(attention=partial(SinkhornAttention, block=puzzle.block, **settings))


REEVALUATED = {**{f"{n} rounds": sinkhorn(ORDER, iterations=n) for n in ROUNDS}, HEATED: sinkhorn(ORDER, temperature=10.0)}
VARIANTS = {
    SORTED: variant(COPY, sinkhorn(COPY)),
    OWN: variant(COPY, Heads(), block(COPY.block)),
    FREE: variant(COPY, sinkhorn(COPY, iterations=0)),
    RANKED: variant(ORDER, sinkhorn(ORDER), reevaluated=REEVALUATED),
    LOOSE: variant(ORDER, sinkhorn(ORDER, iterations=0)),
    WARM: variant(ORDER, sinkhorn(ORDER, temperature=10.0)),
}


def lower(what: str, variant: str, metric: str = "accuracy") -> Claim:
    return below(f"order: {what}: at least 15 points lower", (variant, metric), RANKED, 0.15)


recipe = Recipe(
    facts=RecipeFacts("sinkhorn2020", 2020, "Sparse Sinkhorn attention", "arXiv:2002.11296", "about twenty minutes"),
    question="Can blocks be sorted so that each finds the one it must copy?",
    variants=VARIANTS,
    claims=(
        at_least("copy: sorted blocks: at least 95 % of the tokens right", 0.95, SORTED),
        at_most("copy: own block alone: at most 10 %, where one in sixteen is chance", 0.1, OWN, kind="control"),
        lower("without balancing", LOOSE),
        lower("trained at temperature 10", WARM),
        lower("heated to temperature 10 after training", RANKED, f"accuracy, {HEATED}"),
    ),
    pictures=(
        validation_curves("accuracy", "copy"),
        validation_curves("accuracy", "order"),
        Curves(metric="accuracy", file="rounds", x="rounds of balancing, after training", y="accuracy", title="Order"),
        AttentionMaps(variants=VARIANTS, columns=3),
    ),
)

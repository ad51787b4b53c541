"""A learned ranking of blocks lets all queries share the few that matter; the first blocks as they come do not hold them.

Paper: Tay et al. 2020, "Sparse Sinkhorn attention", arXiv:2002.11296, sections 3.4 and 4 (there sentiment and inference: SortCut is on par with
       attention to all keys).
Run:   regard run sortcut2020        Takes: ten minutes on one CPU core; three seeds of five small models.

One informative token in a hundred and twenty-eight, whose class the first position must tell; two layers, two heads of 16, blocks of 8: the queries
share one, two or four of sixteen. The ablation keeps the first two blocks; training without noise, as for evaluation.
"""

from __future__ import annotations

from functools import partial

from ..attention import SortCutAttention
from ..patterns import Pattern, full, to_tokens
from ._engine import Claim, Recipe, RecipeFacts, above, at_most, measured, validation_curves
from ._engine.puzzles import Needle
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

BLOCK, KEPT = 8, (1, 2, 4)
FIRST, ALL = "the first 2 blocks", "all keys"


def name(kept: int) -> str:
    return f"{kept} sorted block" + "s" * (kept > 1)


def variant(heads: Heads, pattern: Pattern = full) -> StackVariant:
    return StackVariant(puzzle=Needle(), mixer=heads, pattern=pattern, train=puzzle_training(400))


def sorted_blocks(kept: int) -> StackVariant:
    return variant(Heads(attention=partial(SortCutAttention, head_dim=WIDTH // HEADS, heads=HEADS, kept=kept, block=BLOCK)))


recipe = Recipe(
    facts=RecipeFacts("sortcut2020", 2020, "Sparse Sinkhorn attention", "arXiv:2002.11296", "ten minutes"),
    question="How many sorted blocks do all queries need to share?",
    variants={
        **{name(kept): sorted_blocks(kept) for kept in KEPT},
        FIRST: variant(Heads(), to_tokens(*range(2 * BLOCK))),
        ALL: variant(Heads()),
    },
    claims=(
        Claim(
            "two sorted blocks of sixteen are at most 5 points below all keys",
            measured(name(2)) - measured(ALL) >= -0.05,
            source="section 4",
            learned=(measured(ALL) >= 0.95,),
        ),
        above("two sorted blocks are at least 30 points above the first two", name(2), FIRST, 0.3, source="section 3.4"),
        Claim(
            "more blocks are never worse by more than 2 points, from 1 to 4",
            *(measured(name(2 * kept)) - measured(name(kept)) >= -0.02 for kept in KEPT[:-1]),
        ),
        at_most("the first two blocks, which never hold the needle: at most 20 %", 0.2, FIRST, kind="control"),
    ),
    pictures=(validation_curves("accuracy"),),
)

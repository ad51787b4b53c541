"""Blocks that are sorted to where they are wanted let a window of one block copy from anywhere.

Paper: Tay, Bahri, Yang, Metzler & Juan 2020, "Sparse Sinkhorn attention", arXiv:2002.11296, sections 3 and 5 (there language and
       pictures, here blocks to be copied).
Run:   regard run sinkhorn2020        Takes: some minutes on two CPU cores; three seeds of four small models.

Eight blocks of eight tokens; each block must say what stands in another one, always the same. One layer, so that nothing comes by
way of a third block. Ablations: the own block alone; no balancing, so that rows sum to one and columns to anything; a high temperature, which
mixes blocks instead of sorting them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..attention import SinkhornAttention
from ..patterns import Pattern, block, full
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import looks, solving
from ._puzzles import Blocks
from ._sequences import Heads, Taught, training

BLOCK = 8
SORTED, OWN, LOOSE, WARM = "sorted blocks", "own block alone", "sorted without balancing", "sorted at temperature 10"


def variant(heads: Heads, pattern: Pattern = full) -> Taught:
    return Taught(puzzle=Blocks(block=BLOCK), mixer=heads, pattern=pattern, depth=1, train=training(1200))


def sinkhorn(**settings: Any) -> Heads:
    return Heads(attention=partial(SinkhornAttention, block=BLOCK, **settings))


VARIANTS = {
    SORTED: variant(sinkhorn()),
    OWN: variant(Heads(), block(BLOCK)),
    LOOSE: variant(sinkhorn(iterations=0)),
    WARM: variant(sinkhorn(temperature=10.0)),
}


def maps(figures: Figures, out: Path) -> Path:
    shown = {name: each.look(folder(out, name, figures.seeds[0])) for name, each in VARIANTS.items()}
    return looks(out / "looks.png", shown, columns=len(shown))


def lower(name: str) -> Claim:
    return Claim(
        f"{name}: at least 15 points lower",
        lambda f: (f[SORTED, "accuracy"] - f[name, "accuracy"]).low >= 0.15,
        lambda f: f"{f[name, 'accuracy']} against {f[SORTED, 'accuracy']}",
    )


recipe = Recipe(
    facts=RecipeFacts(
        name="sinkhorn2020", year=2020, title="Sparse Sinkhorn attention", paper="arXiv:2002.11296", takes="minutes on two CPU cores"
    ),
    question="Can blocks be sorted so that each finds the one it must copy?",
    variants=VARIANTS,
    claims=(
        Claim(
            "sorted blocks: at least 95 % of the tokens right",
            lambda f: f[SORTED, "accuracy"].low >= 0.95,
            lambda f: str(f[SORTED, "accuracy"]),
        ),
        Claim(
            "own block alone: at most 10 %, where one in sixteen is chance",
            lambda f: f[OWN, "accuracy"].high <= 0.1,
            lambda f: str(f[OWN, "accuracy"]),
        ),
        lower(LOOSE),
        lower(WARM),
    ),
    pictures=(solving, maps),
)

"""Blocks that are sorted to where they are wanted let a window of one block copy from anywhere; balancing makes one block yield to another.

Paper: Tay, Bahri, Yang, Metzler & Juan 2020, "Sparse Sinkhorn attention", arXiv:2002.11296, sections 3 and 5 (there language, pictures
       and numbers to be sorted, here blocks).
Run:   regard run sinkhorn2020        Takes: some minutes on two CPU cores; three seeds of six small models.

Copy: eight blocks of eight tokens; each must say what stands in another one, always the same. Order: eight blocks of four tokens; the
u-th must say the block with the u-th smallest of the numbers that blocks begin with. One layer, so that nothing comes by way of a third
block. Ablations: the own block alone; no balancing, so that rows sum to one and columns to anything; a high temperature, which mixes blocks
instead of sorting them. To copy, balancing is not needed: each block finds its own by a softmax over blocks, and that figure stands beside
without a claim. To order, it should be: a block compares itself with the others one at a time, and which is the u-th depends on all of them.
A temperature that is there from the beginning is made up for by larger queries and keys; the same weights at another one cannot.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..attention import SinkhornAttention
from ..patterns import Pattern, block, full
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import lines, looks, series, solving
from ._puzzles import Blocks, Puzzle, Ranked
from ._sequences import Heads, Taught, training

COPY, ORDER = Blocks(block=8), Ranked(block=4)
SORTED, OWN, FREE = "copy, sorted blocks", "copy, own block alone", "copy, without balancing"
RANKED, LOOSE, WARM = "order, sorted blocks", "order, without balancing", "order, temperature 10"
HEATED = "heated"  # to temperature 10, after training
ROUNDS = (0, 1, 2, 4, 8, 16)


def variant(puzzle: Puzzle, heads: Heads, pattern: Pattern = full, **more: Any) -> Taught:
    train = training(2400, 2e-2) if puzzle is ORDER else training(1200)  # with 1e-2 one seed of three sees no order
    return Taught(puzzle=puzzle, mixer=heads, pattern=pattern, depth=1, train=train, **more)


def sinkhorn(puzzle: Blocks | Ranked, **settings: Any) -> Heads:
    return Heads(attention=partial(SinkhornAttention, block=puzzle.block, **settings))


RETRIED = {**{f"{n} rounds": {"iterations": n} for n in ROUNDS}, HEATED: {"temperature": 10.0}}
VARIANTS = {
    SORTED: variant(COPY, sinkhorn(COPY)),
    OWN: variant(COPY, Heads(), block(COPY.block)),
    FREE: variant(COPY, sinkhorn(COPY, iterations=0)),
    RANKED: variant(ORDER, sinkhorn(ORDER), retried=RETRIED),
    LOOSE: variant(ORDER, sinkhorn(ORDER, iterations=0)),
    WARM: variant(ORDER, sinkhorn(ORDER, temperature=10.0)),
}


def maps(figures: Figures, out: Path) -> Path:
    shown = {name: each.look(folder(out, name, figures.seeds[0])) for name, each in VARIANTS.items()}
    return looks(out / "looks.png", shown, columns=3)


def by_rounds(figures: Figures, out: Path) -> Path:
    return lines(out / "rounds.png", series(figures, "accuracy"), x="rounds of balancing, after training", y="share right", title="Order")


def lower(says: str, worse: tuple[str, str]) -> Claim:
    """By 15 points in the worst seed."""
    return Claim(
        f"order: {says}: at least 15 points lower",
        lambda f: (f[RANKED, "accuracy"] - f[worse]).low >= 0.15,
        lambda f: f"{f[worse]} against {f[RANKED, 'accuracy']}",
    )


recipe = Recipe(
    facts=RecipeFacts(
        name="sinkhorn2020", year=2020, title="Sparse Sinkhorn attention", paper="arXiv:2002.11296", takes="minutes on two CPU cores"
    ),
    question="Can blocks be sorted so that each finds the one it must copy?",
    variants=VARIANTS,
    claims=(
        Claim(
            "copy: sorted blocks: at least 95 % of the tokens right",
            lambda f: f[SORTED, "accuracy"].low >= 0.95,
            lambda f: str(f[SORTED, "accuracy"]),
        ),
        Claim(
            "copy: own block alone: at most 10 %, where one in sixteen is chance",
            lambda f: f[OWN, "accuracy"].high <= 0.1,
            lambda f: str(f[OWN, "accuracy"]),
        ),
        lower("without balancing", (LOOSE, "accuracy")),
        lower("trained at temperature 10", (WARM, "accuracy")),
        lower("heated to temperature 10 after training", (RANKED, f"accuracy, {HEATED}")),
    ),
    pictures=(partial(solving, among="copy"), partial(solving, among="order"), by_rounds, maps),
)

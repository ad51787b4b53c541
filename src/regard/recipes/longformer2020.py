"""A window sees its neighbourhood; one global token makes it see everything: in two layers any token reaches any other by way of it.

Paper: Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1 (there documents,
       here one telling token in a hundred and twenty-eight).
Run:   regard run longformer2020        Takes: some minutes on two CPU cores; three seeds of four small models.

The question stands at the first place, the answer anywhere from place 20 on; windows of 4 to either side and two layers reach 8. Random
keys, as many a row as a window has on one side, are the other way to shorten paths that BigBird tried.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..attention import LocalAttention, LongformerAttention
from ..patterns import Pattern, full, random_blocks, window
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import looks, solving
from ._puzzles import Needle
from ._sequences import Heads, Taught, training

RADIUS = 4
FAR, NEAR, RANDOM, ALL = "window and global token", "window", "window and random keys", "all keys"


def variant(heads: Heads, pattern: Pattern = full) -> Taught:
    return Taught(puzzle=Needle(), mixer=heads, pattern=pattern, train=training(300))


VARIANTS = {
    FAR: variant(Heads(attention=partial(LongformerAttention, RADIUS))),
    NEAR: variant(Heads(attention=partial(LocalAttention, RADIUS))),
    RANDOM: variant(Heads(), window(RADIUS) | random_blocks(1, RADIUS)),
    ALL: variant(Heads()),
}


def maps(figures: Figures, out: Path) -> Path:
    shown = {f"{name}, {n + 1}": VARIANTS[name].look(folder(out, name, figures.seeds[0]), n) for name in (FAR, NEAR, ALL) for n in (0, 1)}
    return looks(out / "looks.png", shown, columns=2)


recipe = Recipe(
    facts=RecipeFacts(
        name="longformer2020",
        year=2020,
        title="Longformer: the long-document transformer",
        paper="arXiv:2004.05150",
        takes="some five minutes on two CPU cores",
    ),
    question="Can a window find what lies outside of it, with and without a global token?",
    variants=VARIANTS,
    claims=(
        Claim(
            "window and global token: at least 95 % of the needles found",
            lambda f: f[FAR, "accuracy"].low >= 0.95,
            lambda f: str(f[FAR, "accuracy"]),
        ),
        Claim(
            "the window alone: at most 20 %, where one in eight is chance",
            lambda f: f[NEAR, "accuracy"].high <= 0.2,
            lambda f: str(f[NEAR, "accuracy"]),
        ),
        Claim(
            "random keys in place of the global token: at least 30 points below it",
            lambda f: (f[FAR, "accuracy"] - f[RANDOM, "accuracy"]).low >= 0.3,
            lambda f: f"{f[RANDOM, 'accuracy']} against {f[FAR, 'accuracy']}",
        ),
    ),
    pictures=(solving, maps),
)

"""Hashing finds the few keys that matter, and rounds buy certainty: more of them than in training help, fewer cost.

Paper: Kitaev, Kaiser & Levskaya 2020, "Reformer: the efficient transformer", arXiv:2001.04451, section 5 and table 2 (there sequences
       of 1,024, here of 128).
Run:   regard run reformer2020        Takes: some minutes on two CPU cores; three seeds of three small models.

0w0w with w of 63 out of 16 symbols; two layers, width 64, 2 heads, chunks of 8. Exact attention is the same mechanism with one chunk of
all 128. The ablation hashes nothing: buckets are drawn at random, and as many pairs are looked at. (With 64 symbols and 4 heads that
is enough to meet almost every pair: 98 % right.)
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..attention import LSHAttention
from ..patterns import Pattern, causal, full
from ._base import Claim, Figures, Recipe, RecipeFacts
from ._pictures import lines, series, solving
from ._puzzles import Duplicate
from ._sequences import Heads, Taught, training

LENGTH, WIDTH, CHUNK, ROUNDS = 128, 64, 8, (1, 2, 4, 8)
HASHED, EXACT, DICE = "hashed, 4 rounds", "exact", "buckets at random"


class RandomBuckets(LSHAttention):
    """The ablation: positions fall into buckets whatever they say."""

    def hash(self, q_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        return torch.randint(self.buckets[0], super().hash(q_BLHK, pattern).shape, device=q_BLHK.device)


def variant(kind: type[LSHAttention] = LSHAttention, rounds: int = 4, chunk: int = CHUNK) -> Taught:
    attention = partial(kind, rounds=rounds, chunk=chunk, buckets=16, seed=None)  # other hash functions at every call
    return Taught(
        puzzle=Duplicate(length=LENGTH),
        mixer=Heads(attention=attention, width=WIDTH, heads=2, shared_qk=True),
        train=training(800),
        width=WIDTH,
        pattern=causal,
        retried={f"{rounds} rounds": {"rounds": rounds, "chunk": CHUNK} for rounds in ROUNDS},
    )


def by_rounds(figures: Figures, out: Path) -> Path:
    curves = series(figures, "accuracy")
    return lines(out / "rounds.png", curves, x="rounds, after training", y="share right", title="Duplication", logarithmic="x")


def rounds(name: str, count: int) -> tuple[str, str]:
    return name, f"accuracy, {count} rounds"


recipe = Recipe(
    facts=RecipeFacts(
        name="reformer2020",
        year=2020,
        title="Reformer: the efficient transformer",
        paper="arXiv:2001.04451",
        takes="some ten minutes on two CPU cores",
    ),
    question="How many rounds of hashing does it take to copy a word, and can their number change after training?",
    variants={HASHED: variant(), EXACT: variant(rounds=1, chunk=LENGTH), DICE: variant(RandomBuckets)},
    claims=(
        Claim(
            "trained and run with 4 rounds: at least 99 % right",
            lambda f: f[rounds(HASHED, 4)].low >= 0.99,
            lambda f: str(f[rounds(HASHED, 4)]),
        ),
        Claim(
            "run with 1 round: at least 3 points lower",
            lambda f: (f[rounds(HASHED, 4)] - f[rounds(HASHED, 1)]).low >= 0.03,
            lambda f: f"{f[rounds(HASHED, 1)]} against {f[rounds(HASHED, 4)]}",
        ),
        Claim(
            "more rounds are never worse by more than half a point, from 1 to 8",
            lambda f: all((f[rounds(HASHED, 2 * n)] - f[rounds(HASHED, n)]).low >= -0.005 for n in ROUNDS[:-1]),
            lambda f: ", ".join(str(f[rounds(HASHED, n)]) for n in ROUNDS),
        ),
        Claim(
            "trained with exact attention and run with 1 round: lower than trained with hashing",
            lambda f: (f[rounds(HASHED, 1)] - f[rounds(EXACT, 1)]).mean > 0,
            lambda f: f"{f[rounds(EXACT, 1)]} against {f[rounds(HASHED, 1)]}",
        ),
        Claim(
            "buckets at random, 4 rounds: at least 20 points below hashing",
            lambda f: (f[rounds(HASHED, 4)] - f[rounds(DICE, 4)]).low >= 0.2,
            lambda f: f"{f[rounds(DICE, 4)]} against {f[rounds(HASHED, 4)]}",
        ),
    ),
    pictures=(by_rounds, solving),
)

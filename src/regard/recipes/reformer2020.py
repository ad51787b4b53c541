"""Hashing finds the few keys that matter, and more rounds find them more reliably: more than in training help, fewer cost accuracy.

Paper: Kitaev, Kaiser & Levskaya 2020, "Reformer: the efficient transformer", arXiv:2001.04451, section 5 and table 2 (there sequences
       of 1,024, here of 128).
Run:   regard run reformer2020        Takes: about half an hour on two CPU cores; three seeds of three small models.

0w0w with w of 63 out of 16 symbols; two layers, width 64, 2 heads, chunks of 8. Exact attention is the same mechanism with one chunk of
all 128. The ablation hashes nothing: buckets are drawn at random, and as many pairs are compared. (With 64 symbols and 4 heads that
is enough to meet almost every pair: 98 % right.)
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..attention import LSHAttention
from ..patterns import Pattern, causal, full
from ._engine import Claim, Curves, Recipe, RecipeFacts, at_least, below, measured, validation_curves
from ._engine.puzzles import Duplicate
from ._engine.stacks import Heads, StackVariant, puzzle_training

LENGTH, WIDTH, CHUNK, ROUNDS = 128, 64, 8, (1, 2, 4, 8)
HASHED, EXACT, RANDOM = "hashed, 4 rounds", "exact", "random buckets"


class RandomBuckets(LSHAttention):
    """The ablation: positions fall into buckets regardless of content."""

    def hash(self, q_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        return torch.randint(self.buckets[0], super().hash(q_BLHK, pattern).shape, device=q_BLHK.device)


def heads(kind: type[LSHAttention], rounds: int, chunk: int) -> Heads:
    attention = partial(kind, rounds=rounds, chunk=chunk, buckets=16, seed=None)  # other hash functions at every call
    return Heads(attention=attention, width=WIDTH, heads=2, shared_qk=True)


def variant(kind: type[LSHAttention] = LSHAttention, rounds: int = 4, chunk: int = CHUNK) -> StackVariant:
    return StackVariant(
        puzzle=Duplicate(length=LENGTH),
        mixer=heads(kind, rounds, chunk),
        train=puzzle_training(800),
        width=WIDTH,
        pattern=causal,
        reevaluated={f"{rounds} rounds": heads(kind, rounds, CHUNK) for rounds in ROUNDS},
    )


def accuracy(name: str, rounds: int) -> tuple[str, str]:
    return name, f"accuracy, {rounds} rounds"


recipe = Recipe(
    facts=RecipeFacts("reformer2020", 2020, "Reformer: the efficient transformer", "arXiv:2001.04451", "about half an hour"),
    question="How many rounds of hashing does it take to copy a word, and can their number change after training?",
    variants={HASHED: variant(), EXACT: variant(rounds=1, chunk=LENGTH), RANDOM: variant(RandomBuckets)},
    claims=(
        at_least("trained and run with 4 rounds: at least 99 % right", 0.99, accuracy(HASHED, 4)),
        below("run with 1 round: at least 3 points lower", accuracy(HASHED, 1), accuracy(HASHED, 4), 0.03),
        Claim(
            "more rounds are never worse by more than half a point, from 1 to 8",
            *(measured(*accuracy(HASHED, 2 * n)) - measured(*accuracy(HASHED, n)) >= -0.005 for n in ROUNDS[:-1]),
            source="table 2",
        ),
        below("trained exactly, run with 1 round: lower than trained with hashing", accuracy(EXACT, 1), accuracy(HASHED, 1)),
        below("random buckets, 4 rounds: at least 20 points below hashing", accuracy(RANDOM, 4), accuracy(HASHED, 4), 0.2),
    ),
    pictures=(
        Curves(metric="accuracy", file="rounds", x="rounds, after training", y="accuracy", title="Duplication", log="x"),
        validation_curves("accuracy"),
    ),
)

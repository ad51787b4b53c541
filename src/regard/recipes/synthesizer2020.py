"""A matrix of logits of low rank mixes positions as well as one of full rank, with fewer parameters; neither compares tokens.

Paper: Tay et al. 2020, "Synthesizer: rethinking self-attention in transformer models", arXiv:2005.00743, sections 3 and 4.1 (there
       translation, where factors and full matrices are within some tenths of a BLEU point of each other).
Run:   regard run synthesizer2020        Takes: a quarter of an hour on one CPU core; three seeds of eight small models.

Shift: the token 20 positions before, around the end of 64. Recall: eight keys with values, then the keys in another order, with a short convolution
before every mechanism. Two layers, two heads of 16; the factors of Random have rank 8, those of Dense 8 and 8 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..attention import (
    Attention,
    DenseSynthesizer,
    FactorisedDenseSynthesizer,
    FactorisedRandomSynthesizer,
    MixtureSynthesizer,
    RandomSynthesizer,
    SoftmaxAttention,
)
from ._engine import Claim, Recipe, RecipeFacts, below, measured, validation_curves
from ._engine.puzzles import Lag, Puzzle, Recall
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

SHIFT, RECALL = Lag(around=True), Recall(pairs=8)
CONTENT = {"heads": HEADS, "head_dim": WIDTH // HEADS}


def mixture(length: int) -> MixtureSynthesizer:
    return MixtureSynthesizer([FactorisedRandomSynthesizer(heads=HEADS, max_length=length)])


def mechanisms(puzzle: Puzzle) -> dict[str, Callable[[], Attention]]:
    n = puzzle.length
    return {
        "dot products": SoftmaxAttention,
        "random": partial(RandomSynthesizer, heads=HEADS, max_length=n),
        "factorised random": partial(FactorisedRandomSynthesizer, heads=HEADS, max_length=n),
        "dense": partial(DenseSynthesizer, **CONTENT, max_length=n),
        "factorised dense": partial(FactorisedDenseSynthesizer, **CONTENT, max_length=n),
        "factorised random and dot products": partial(mixture, n),
    }


def variant(puzzle: Puzzle, attention: Callable[[], Attention], convolution: int = 0) -> StackVariant:
    return StackVariant(puzzle=puzzle, mixer=Heads(attention=attention), convolution=convolution, train=puzzle_training(600))


RECALLING = ("dot products", "factorised random", "factorised dense", "factorised random and dot products")
LEARNED = (measured("shift, random") >= 0.95,)
recipe = Recipe(
    facts=RecipeFacts(
        "synthesizer2020", 2020, "Synthesizer: rethinking self-attention in transformer models", "arXiv:2005.00743", "a quarter of an hour"
    ),
    question="What do the factors of a Synthesizer's logits save, and what does it lose without comparing tokens?",
    variants={
        **{f"shift, {name}": variant(SHIFT, attention) for name, attention in mechanisms(SHIFT).items()},
        **{f"recall, {name}": variant(RECALL, mechanisms(RECALL)[name], 3) for name in RECALLING},
    },
    claims=(
        Claim(
            "shift: factorised random is at most 2 points below random, with fewer parameters",
            measured("shift, factorised random") - measured("shift, random") >= -0.02,
            measured("shift, random", "parameters") - measured("shift, factorised random", "parameters") >= 1,
            source="section 4.1",
            learned=LEARNED,
        ),
        below("shift: factorised dense is below dense", "shift, factorised dense", "shift, dense"),
        Claim(
            "recall: without comparing tokens at least 30 points below dot products",
            *(measured("recall, dot products") - measured(f"recall, {name}") >= 0.3 for name in RECALLING[1:3]),
            learned=(measured("recall, dot products") >= 0.95,),
        ),
        Claim(
            "recall: a mixture with dot products is at most 2 points below them",
            measured(f"recall, {RECALLING[3]}") - measured("recall, dot products") >= -0.02,
            source="section 4.1",
            learned=(measured("recall, dot products") >= 0.95,),
        ),
    ),
    pictures=(validation_curves("accuracy", "shift"), validation_curves("accuracy", "recall")),
)

"""Addressing by content needs a strength: cosines between −1 and 1 cannot choose one key among many.

Paper: Graves, Wayne & Danihelka 2014, "Neural Turing machines", arXiv:1410.5401, section 3.3.1 and eq. 5 (there the strength is one of the outputs of a
       controller, here a parameter per head).
Run:   regard run ntm2014        Takes: five minutes on one CPU core; three seeds of four small models.

Recall: sixteen keys with values, then the keys in another order; two layers, two heads of 16, a short convolution before every mechanism, no
positional encoding. The strength begins at 10 and is learned, or stays at 1, where the largest weight is at most e² times the smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..attention import Attention, CosineAttention, LinearAttention, SoftmaxAttention
from ..patterns import causal
from ._engine import Claim, Recipe, RecipeFacts, above, at_least, measured, validation_curves
from ._engine.puzzles import Recall
from ._engine.stacks import HEADS, Heads, StackVariant, puzzle_training

LEARNED, WEAK, SOFTMAX, LINEAR = "cosine, strength learned", "cosine, strength 1", "dot products", "linear"


class WeakCosine(CosineAttention):
    """The ablation: a strength that stays as it is."""

    def __init__(self) -> None:
        super().__init__(heads=HEADS, beta=1.0)
        self.log_beta_H.requires_grad_(False)


def variant(attention: Callable[[], Attention]) -> StackVariant:
    mixer, train = Heads(attention=attention), puzzle_training(600)
    return StackVariant(puzzle=Recall(), mixer=mixer, convolution=3, pattern=causal, positions=False, train=train)


recipe = Recipe(
    facts=RecipeFacts("ntm2014", 2014, "Neural Turing machines", "arXiv:1410.5401", "five minutes"),
    question="Does addressing by the cosine of content need a strength?",
    variants={
        LEARNED: variant(partial(CosineAttention, heads=HEADS)),
        WEAK: variant(WeakCosine),
        SOFTMAX: variant(SoftmaxAttention),
        LINEAR: variant(LinearAttention),
    },
    claims=(
        at_least("cosines with a learned strength: at least 99 % right", 0.99, LEARNED),
        above("at least 20 points above a strength of 1", LEARNED, WEAK, 0.2, source="eq. 5"),
        Claim(
            "and at most 1 point below dot products",
            measured(LEARNED) - measured(SOFTMAX) >= -0.01,
            learned=(measured(SOFTMAX) >= 0.95,),
        ),
    ),
    pictures=(validation_curves("accuracy"),),
)

"""Each feature of the keys is a map over all positions: enough to find what is the same question for every query, not to look up single items.

Paper: Shen et al. 2018, "Efficient attention: attention with linear complexities", arXiv:1812.01243, sections 3 and 4 (there detection of
       objects, where it replaces attention at equal precision; here a token in a hundred and twenty-eight).
Run:   regard run efficient2018        Takes: five minutes on one CPU core; three seeds of seven small models.

Needle: one informative token, whose class the first position must tell; two layers, two heads of 16. Recall: sixteen keys with values, then the keys in
another order, with a short convolution before every mechanism and no positional encoding; all attend to all. The state of efficient and of
linear attention is a matrix of 16 rows per head; linear adds the sum of the features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..attention import Attention, EfficientAttention, LinearAttention, SoftmaxAttention
from ._engine import Claim, Recipe, RecipeFacts, at_most, below, measured, validation_curves
from ._engine.puzzles import Needle, Recall
from ._engine.stacks import Heads, NoMixing, StackVariant, puzzle_training


@dataclass(frozen=True)
class Exactness:
    """Distance of the output, summed in an order of linear cost, to that of the matrix of weights softmax(q) softmax(k)ᵀ times v."""

    tokens: int = 512

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        q, k, v = torch.randn(3, 1, self.tokens, 1, 32, dtype=torch.float64)
        weights_LM = q[0, :, 0].softmax(-1) @ k[0, :, 0].softmax(0).T
        wanted_LV = weights_LM @ v[0, :, 0]
        return {"error": float((EfficientAttention()(q, k, v)[0, :, 0] - wanted_LV).norm() / wanted_LV.norm())}


def needle(attention: Callable[[], Attention]) -> StackVariant:
    return StackVariant(puzzle=Needle(), mixer=Heads(attention=attention), train=puzzle_training(300))


def recall(attention: Callable[[], Attention]) -> StackVariant:
    mixer = Heads(attention=attention)
    return StackVariant(puzzle=Recall(), mixer=mixer, convolution=3, positions=False, train=puzzle_training(600))


MECHANISMS: dict[str, Callable[[], Attention]] = {"efficient": EfficientAttention, "linear": LinearAttention, "softmax": SoftmaxAttention}
VARIANTS = {
    **{f"needle, {name}": needle(attention) for name, attention in MECHANISMS.items()},
    "needle, no mixing": StackVariant(puzzle=Needle(), mixer=NoMixing, train=puzzle_training(300)),
    **{f"recall, {name}": recall(attention) for name, attention in MECHANISMS.items()},
}
recipe = Recipe(
    facts=RecipeFacts("efficient2018", 2018, "Efficient attention: attention with linear complexities", "arXiv:1812.01243", "five minutes"),
    question="What is lost when queries choose among features instead of among keys?",
    variants={"exactness": Exactness(), **VARIANTS},
    claims=(
        at_most("the sum in linear time is that of all weights, to 1e-12", 1e-12, ("exactness", "error"), kind="control", source="section 3.2"),
        Claim(
            "needle: efficient attention is at most 2 points below softmax",
            measured("needle, efficient") - measured("needle, softmax") >= -0.02,
            source="section 4",
            learned=(measured("needle, softmax") >= 0.95,),
        ),
        at_most("needle: without mixing at most 20 %, where one in eight is chance", 0.2, "needle, no mixing", kind="control"),
        Claim(
            "recall: efficient attention, whose 16 features are shared by all keys, is at least 10 points below softmax",
            measured("recall, softmax") - measured("recall, efficient") >= 0.1,
            learned=(measured("recall, softmax") >= 0.95,),
        ),
        below("recall: softmax over features and over positions is above elu + 1, with as many rows in the state", "recall, linear", "recall, efficient"),
    ),
    pictures=(validation_curves("accuracy", "needle"), validation_curves("accuracy", "recall")),
)  # fmt: skip

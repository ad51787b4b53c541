"""Sigmoids in place of the softmax learn as well if each begins at one over the number of keys; without that bias they do not.

Paper: Ramapuram et al. 2024, "Theory, analysis, and best practices for sigmoid self-attention", arXiv:2409.04431, sections 3 and 5 (there
       language models, images and speech).
Run:   regard run sigmoid2024        Takes: a quarter of an hour on one CPU core; three seeds of three small models, and of a measurement.

At the start: the norm of the outputs for 1,024 random keys relative to that for 64. Learning: characters of CPython's documentation in windows of 64, two
layers of width 64 with 4 heads and rotary positions. The ablation leaves out −log n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..attention import Attention, Call, SigmoidAttention, SoftmaxAttention
from ..layers import Rotary
from ._engine import Claim, Recipe, RecipeFacts, above, measured, validation_curves
from ._engine.stacks import Heads, puzzle_training
from ._engine.text_stacks import TextStackVariant

KEYS = (64, 1024)


class PlainSigmoid(SigmoidAttention):
    """The ablation: sigmoids of the scores alone."""

    def row_bias(self, call: Call) -> Tensor:
        return torch.zeros_like(super().row_bias(call))


@dataclass(frozen=True)
class FirstOutputs:
    """Norm of the first outputs by number of keys, of values whose mean is not zero."""

    attention: Callable[[], Attention]

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        found = {}
        for keys in KEYS:
            q, k, v = torch.randn(1, 64, 1, 16), torch.randn(1, keys, 1, 16), 1 + torch.randn(1, keys, 1, 16)
            found[f"norm, {keys} keys"] = float(self.attention()(q, k, v).norm(dim=-1).mean())
        return {"growth": found[f"norm, {KEYS[1]} keys"] / found[f"norm, {KEYS[0]} keys"], **found}


MECHANISMS: dict[str, Callable[[], Attention]] = {
    "softmax": SoftmaxAttention,
    "sigmoid": SigmoidAttention,
    "sigmoid without bias": PlainSigmoid,
}


def variant(attention: Callable[[], Attention]) -> TextStackVariant:
    mixer = Heads(attention=attention, width=64, heads=4, position=Rotary)
    return TextStackVariant(mixer=mixer, longest=64, train=puzzle_training(800))


recipe = Recipe(
    facts=RecipeFacts(
        "sigmoid2024",
        2024,
        "Theory, analysis, and best practices for sigmoid self-attention",
        "arXiv:2409.04431",
        "a quarter of an hour",
    ),
    question="Can sigmoids take the place of the softmax, and what is their bias for?",
    variants={
        **{f"first outputs, {name}": FirstOutputs(attention) for name, attention in MECHANISMS.items()},
        **{name: variant(attention) for name, attention in MECHANISMS.items()},
    },
    claims=(
        Claim(
            "from 64 to 1,024 keys the first outputs grow by less than a quarter with the bias, by more than ten times without",
            measured("first outputs, sigmoid", "growth") <= 1.25,
            measured("first outputs, sigmoid without bias", "growth") >= 10,
            source="eq. 3",
        ),
        Claim(
            "after equal steps the loss is at most 0.02 nats above that of softmax",
            measured("sigmoid", "loss") - measured("softmax", "loss") <= 0.02,
            source="section 5",
        ),
        above("without the bias the loss is higher", ("sigmoid without bias", "loss"), ("sigmoid", "loss"), source="section 5"),
    ),
    pictures=(validation_curves("accuracy"),),
)

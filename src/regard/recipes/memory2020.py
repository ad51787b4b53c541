"""Softmax makes the memory large: a dictionary read by attention stores far more pairs than a sum of outer products.

Paper: Ramsauer et al. 2020, "Hopfield networks is all you need", arXiv:2008.02217 (capacity exponential in the dimension).
Run:   regard run memory2020        Takes: seconds; nothing is trained.

N random unit keys with random unit values, of dimension 64; the queries are keys with noise of norm 0.3. A read is right if the nearest
stored value is the right one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..attention import SoftmaxAttention
from ._engine import Curves, Recipe, RecipeFacts, at_least, at_most

DIM, NOISE, SIZES, QUERIES = 64, 0.3, (16, 64, 256, 1024, 4096), 256


@dataclass(frozen=True)
class Memory:
    """Accuracy by number of stored pairs, read by softmax attention with inverse temperature `beta`, or by the sum Σ v kᵀ if it is None."""

    beta: float | None

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        return {f"accuracy, {size} pairs": self._accuracy(size) for size in SIZES}

    def _accuracy(self, size: int) -> float:
        k, v = (normalize(torch.randn(size, DIM), dim=-1) for _ in range(2))
        right = torch.randint(size, (QUERIES,))
        q = k[right] + NOISE * normalize(torch.randn(QUERIES, DIM), dim=-1)
        return (self._read(q, k, v) @ v.T).argmax(-1).eq(right).float().mean().item()

    def _read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.beta is None:
            return q @ (k.T @ v)
        return SoftmaxAttention(scale=self.beta)(*(x[None, :, None] for x in (q, k, v)))[0, :, 0]


recipe = Recipe(
    facts=RecipeFacts("memory2020", 2020, "Hopfield networks is all you need", "arXiv:2008.02217", "seconds"),
    question="How many pairs does a dictionary store, read by softmax attention or as a sum of outer products?",
    variants={"softmax, β = 8": Memory(8.0), "softmax, β = 1": Memory(1.0), "linear": Memory(None)},
    claims=(
        at_least(
            "softmax with β = 8: at least 99 % of 4,096 pairs, 64 times its dimension", 0.99, ("softmax, β = 8", "accuracy, 4096 pairs")
        ),
        at_most("the linear memory: at most 10 % of 1,024 pairs, 16 times its dimension", 0.1, ("linear", "accuracy, 1024 pairs")),
        at_most(
            "the temperature matters, not softmax alone: with β = 1 at most 10 % of 1,024 pairs",
            0.1,
            ("softmax, β = 1", "accuracy, 1024 pairs"),
        ),
    ),
    pictures=(Curves(metric="accuracy", file="capacity", x="pairs stored", y="accuracy", title="A memory of dimension 64", log="x"),),
)

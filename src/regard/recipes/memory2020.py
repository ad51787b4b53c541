"""Softmax makes the store large: a dictionary read by attention holds far more pairs than a sum of outer products.

Paper: Ramsauer et al. 2020, "Hopfield networks is all you need", arXiv:2008.02217 (capacity exponential in the width).
Run:   regard run memory2020        Takes: seconds; nothing is trained.

N random unit keys with random unit values, 64 wide; the queries are keys with noise of norm 0.3. What is read counts as right
if the nearest stored value is the right one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..attention import SoftmaxAttention
from ._base import Claim, Figures, Recipe, RecipeFacts
from ._pictures import lines

WIDTH, NOISE, SIZES, ASKED = 64, 0.3, (16, 64, 256, 1024, 4096), 256


def accuracy(read: Tensor, v_NV: Tensor, right: Tensor) -> float:
    return (read @ v_NV.T).argmax(-1).eq(right).float().mean().item()


@dataclass(frozen=True)
class Store:
    """Pairs stored and read: by softmax attention with inverse temperature `beta`, or by the sum Σ v kᵀ if it is None."""

    beta: float | None

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        figures = {}
        for size in SIZES:
            k, v = (normalize(torch.randn(size, WIDTH), dim=-1) for _ in range(2))
            right = torch.randint(size, (ASKED,))
            q = k[right] + NOISE * normalize(torch.randn(ASKED, WIDTH), dim=-1)
            read = (
                q @ (k.T @ v) if self.beta is None else SoftmaxAttention(scale=self.beta)(*(x[None, :, None] for x in (q, k, v)))[0, :, 0]
            )
            figures[f"{size} pairs"] = accuracy(read, v, right)
        return figures


def curves(figures: Figures, out: Path) -> Path:
    points = {name: {size: figures[name, f"{size} pairs"] for size in SIZES} for name in figures.seen}
    return lines(out / "capacity.png", points, x="pairs stored", y="share read right", title="A store 64 wide", logarithmic="x")


recipe = Recipe(
    facts=RecipeFacts(name="memory2020", year=2020, title="Hopfield networks is all you need", paper="arXiv:2008.02217", takes="seconds"),
    question="How many pairs does a dictionary hold, read by softmax attention or as a sum of outer products?",
    variants={"softmax, β = 8": Store(8.0), "softmax, β = 1": Store(1.0), "linear": Store(None)},
    claims=(
        Claim(
            "softmax with β = 8 reads at least 99 % of 4,096 pairs right, 64 times its width",
            lambda f: f["softmax, β = 8", "4096 pairs"].low >= 0.99,
            lambda f: str(f["softmax, β = 8", "4096 pairs"]),
        ),
        Claim(
            "the linear store reads at most 10 % right at 1,024 pairs, 16 times its width",
            lambda f: f["linear", "1024 pairs"].high <= 0.1,
            lambda f: str(f["linear", "1024 pairs"]),
        ),
        Claim(
            "it is the temperature, not softmax alone: with β = 1 at most 10 % of 1,024 pairs",
            lambda f: f["softmax, β = 1", "1024 pairs"].high <= 0.1,
            lambda f: str(f["softmax, β = 1", "1024 pairs"]),
        ),
    ),
    pictures=(curves,),
)

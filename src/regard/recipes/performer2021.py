"""Random features estimate softmax attention: with small queries and keys the error falls as the root of their number, with large ones hardly.

Paper: Choromanski et al. 2021, "Rethinking attention with performers", arXiv:2009.14794, section 2 and figure 4.
Run:   regard run performer2021        Takes: seconds; nothing is trained.

256 random tokens, heads of 32, queries and keys with deviation 0.25, 0.5 or 2: scores of deviation 1/16, 1/4 or 4. The error is that of
the output, relative to exact attention, the mean over sixteen draws of the features. The ablation draws features that are not orthogonal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ..attention import Performer, SoftmaxAttention
from ._base import Claim, Figures, Recipe, RecipeFacts
from ._pictures import lines, series

TOKENS, WIDTH, FEATURES, DRAWS = 256, 32, (16, 64, 256, 1024), 16
SMALL, MIDDLE, LARGE, LOOSE = "deviation 0.25", "deviation 0.5", "deviation 2", "deviation 0.5, not orthogonal"


@dataclass(frozen=True)
class Estimated:
    """The error by number of features, and the exponent of its fall."""

    deviation: float
    orthogonal: bool = True

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        q, k, v = (torch.randn(1, TOKENS, 1, WIDTH, dtype=torch.float64) for _ in range(3))
        q, k = q * self.deviation, k * self.deviation
        exact = SoftmaxAttention()(q, k, v)
        figures = {}
        for features in FEATURES:
            errors = []
            for _ in range(DRAWS):
                performer = Performer(width=WIDTH, features=features).double()
                if not self.orthogonal:
                    performer.omega_FK.normal_()
                errors.append(float((performer(q, k, v) - exact).norm() / exact.norm()))
            figures[f"error, {features} features"] = sum(errors) / len(errors)
        ends = FEATURES[0], FEATURES[-1]
        fall = figures[f"error, {ends[1]} features"] / figures[f"error, {ends[0]} features"]
        return {"exponent": math.log(fall) / math.log(ends[1] / ends[0]), **figures}


def curves(figures: Figures, out: Path) -> Path:
    points = series(figures, "error")
    return lines(out / "error.png", points, x="features", y="relative error", title="Softmax attention, estimated", logarithmic="xy")


recipe = Recipe(
    facts=RecipeFacts(
        name="performer2021", year=2021, title="Rethinking attention with performers", paper="arXiv:2009.14794", takes="seconds"
    ),
    question="How many random features does it take to stand in for softmax, and when is no number enough?",
    variants={SMALL: Estimated(0.25), MIDDLE: Estimated(0.5), LARGE: Estimated(2.0), LOOSE: Estimated(0.5, orthogonal=False)},
    claims=(
        Claim(
            "small queries and keys: the exponent of the error in the number of features lies between −0.6 and −0.4",
            lambda f: f[SMALL, "exponent"].low >= -0.6 and f[SMALL, "exponent"].high <= -0.4,
            lambda f: str(f[SMALL, "exponent"]),
        ),
        Claim(
            "and the error with 1,024 features is at most 5 %",
            lambda f: f[SMALL, "error, 1024 features"].high <= 0.05,
            lambda f: str(f[SMALL, "error, 1024 features"]),
        ),
        Claim(
            "large ones: with 1,024 features the error is still above 50 %, and not half of that with 16",
            lambda f: (
                f[LARGE, "error, 1024 features"].low > 0.5
                and 2 * f[LARGE, "error, 1024 features"].mean > f[LARGE, "error, 16 features"].mean
            ),
            lambda f: f"{f[LARGE, 'error, 1024 features']} and {f[LARGE, 'error, 16 features']}",
        ),
        Claim(
            "features that are not orthogonal have a larger error, with 64 of them",
            lambda f: (f[LOOSE, "error, 64 features"] - f[MIDDLE, "error, 64 features"]).mean > 0,
            lambda f: f"{f[LOOSE, 'error, 64 features']} against {f[MIDDLE, 'error, 64 features']}",
        ),
    ),
    pictures=(curves,),
)

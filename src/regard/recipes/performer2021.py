"""Random features estimate softmax attention: the error falls with the root of their number for small queries and keys only.

Paper: Choromanski et al. 2021, "Rethinking attention with performers", arXiv:2009.14794, section 2 and figure 4.
Run:   regard run performer2021        Takes: seconds; nothing is trained.

256 random tokens, heads of 32, queries and keys of standard deviation 0.25, 0.5 or 2: scores of standard deviation 1/16, 1/4 or 4. The
error is that of the output, relative to exact attention, the mean over sixteen draws of the features. The ablation draws features that are
not orthogonal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ..attention import Performer, SoftmaxAttention
from ._engine import Claim, Curves, Recipe, RecipeFacts, above, at_most, between, measured

TOKENS, HEAD_DIM, FEATURES, DRAWS = 256, 32, (16, 64, 256, 1024), 16
SMALL, MIDDLE, LARGE, LOOSE = "deviation 0.25", "deviation 0.5", "deviation 2", "deviation 0.5, not orthogonal"


@dataclass(frozen=True)
class Estimate:
    """The error by number of features, and the exponent of its fall."""

    deviation: float
    orthogonal: bool = True

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        q, k, v = (torch.randn(1, TOKENS, 1, HEAD_DIM, dtype=torch.float64) for _ in range(3))
        q, k = q * self.deviation, k * self.deviation
        exact = SoftmaxAttention()(q, k, v)
        errors = {}
        for features in FEATURES:
            draws = []
            for _ in range(DRAWS):
                performer = Performer(head_dim=HEAD_DIM, num_features=features).double()
                if not self.orthogonal:
                    performer.omega_FK.normal_()
                draws.append(float((performer(q, k, v) - exact).norm() / exact.norm()))
            errors[features] = sum(draws) / len(draws)
        first, last = FEATURES[0], FEATURES[-1]
        exponent = math.log(errors[last] / errors[first]) / math.log(last / first)
        return {"exponent": exponent, **{f"error, {features} features": error for features, error in errors.items()}}


recipe = Recipe(
    facts=RecipeFacts("performer2021", 2021, "Rethinking attention with performers", "arXiv:2009.14794", "seconds"),
    question="How many random features does it take to approximate softmax, and when is no number enough?",
    variants={SMALL: Estimate(0.25), MIDDLE: Estimate(0.5), LARGE: Estimate(2.0), LOOSE: Estimate(0.5, orthogonal=False)},
    claims=(
        between("small queries and keys: the exponent of error over features is between −0.6 and −0.4", -0.6, -0.4, (SMALL, "exponent")),
        at_most("and the error with 1,024 features is at most 5 %", 0.05, (SMALL, "error, 1024 features")),
        Claim(
            "large ones: with 1,024 features the error is still above 50 %, and more than half of that with 16",
            measured(LARGE, "error, 1024 features") >= 0.5,
            measured(LARGE, "error, 1024 features") / measured(LARGE, "error, 16 features") >= 0.5,
        ),
        above(
            "features that are not orthogonal have a larger error, with 64 of them",
            (LOOSE, "error, 64 features"),
            (MIDDLE, "error, 64 features"),
            source="figure 4",
        ),
    ),
    pictures=(Curves(metric="error", file="error", x="features", y="relative error", title="Estimates of softmax attention", log="xy"),),
)

"""Random features with sines and cosines estimate the Gaussian kernel as well as positive ones where scores are small; a gate forgets.

Paper: Peng et al. 2021, "Random feature attention", arXiv:2103.02143, theorem 1 and section 3 (there language models and translation);
       Choromanski et al. 2021, "Rethinking attention with performers", arXiv:2009.14794, section 2.3 and figure 4.
Run:   regard run rfa2021        Takes: five minutes on one CPU core; three seeds of four small models, and of measurements.

Error: 256 random tokens, heads of 32, unit-norm queries and keys times σ, so that scores have the deviation σ²/√32: 0.25, 1 or 4. The error is that
of the output relative to softmax attention over the same scores, the mean over sixteen draws of the features. Overwrite: eight keys written
twice, the last value counts; two layers, two heads of 16 with 8 sines and as many cosines, a short convolution before every mechanism and no positional
encoding, as in recall2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..attention import Attention, GatedRandomFeatureAttention, LinearAttention, Performer, RandomFeatureAttention, SoftmaxAttention
from ..patterns import causal
from ._engine import Claim, Curves, Recipe, RecipeFacts, above, between, measured, validation_curves
from ._engine.puzzles import Recall
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

TOKENS, HEAD_DIM, FEATURES, DRAWS, DEVIATIONS = 256, 32, (16, 64, 256, 1024), 16, (0.25, 1.0, 4.0)
Kind = Literal["sines", "positive"]


@dataclass(frozen=True)
class Estimate:
    """The error by number of features, and the exponent of its fall."""

    kind: Kind
    deviation: float

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        sigma = (self.deviation * HEAD_DIM**0.5) ** 0.5
        q, k = (sigma * normalize(torch.randn(1, TOKENS, 1, HEAD_DIM, dtype=torch.float64), dim=-1) for _ in range(2))
        v = torch.randn(1, TOKENS, 1, HEAD_DIM, dtype=torch.float64)
        exact = SoftmaxAttention(scale=1.0)(q, k, v)
        errors = {features: self._error(features, q, k, v, exact, sigma) for features in FEATURES}
        exponent = math.log(errors[FEATURES[-1]] / errors[FEATURES[1]]) / math.log(FEATURES[-1] / FEATURES[1])
        return {"exponent": exponent, **{f"error, {features} features": error for features, error in errors.items()}}

    @torch.no_grad()
    def _error(self, features: int, q: Tensor, k: Tensor, v: Tensor, exact: Tensor, sigma: float) -> float:
        total = 0.0
        for _ in range(DRAWS):
            if self.kind == "sines":  # as many numbers per token as the other kind
                sines = RandomFeatureAttention(head_dim=HEAD_DIM, num_features=features // 2).double()
                sines.sigma_HK.fill_(sigma)
                estimate = sines(q, k, v)
            else:
                positive = Performer(head_dim=HEAD_DIM, num_features=features).double()
                estimate = positive(q * HEAD_DIM**0.25, k * HEAD_DIM**0.25, v)  # it divides scores by the root of the size
            total += float((estimate - exact).norm() / exact.norm())
        return total / DRAWS


def overwrite(attention: Callable[[], Attention]) -> StackVariant:
    puzzle, train = Recall(pairs=8, times=2), puzzle_training(800)
    return StackVariant(puzzle=puzzle, mixer=Heads(attention=attention), convolution=3, pattern=causal, positions=False, train=train)


SIZE = {"heads": HEADS, "head_dim": WIDTH // HEADS, "num_features": WIDTH // HEADS // 2}  # a sine and a cosine each
GATE, NO_GATE, LINEAR, SOFTMAX = "overwrite, gate", "overwrite, no gate", "overwrite, linear", "overwrite, softmax"


def error(kind: Kind, deviation: float, features: int) -> tuple[str, str]:
    return f"{kind}, deviation {deviation:g}", f"error, {features} features"


recipe = Recipe(
    facts=RecipeFacts("rfa2021", 2021, "Random feature attention", "arXiv:2103.02143", "five minutes"),
    question="How well do sines and cosines estimate softmax attention, and what does a gate add?",
    variants={
        **{f"{kind}, deviation {one:g}": Estimate(kind, one) for kind in ("sines", "positive") for one in DEVIATIONS},
        GATE: overwrite(partial(GatedRandomFeatureAttention, **SIZE)),
        NO_GATE: overwrite(partial(RandomFeatureAttention, **SIZE)),
        LINEAR: overwrite(LinearAttention),
        SOFTMAX: overwrite(SoftmaxAttention),
    },
    claims=(
        between(
            "scores of deviation 0.25: from 64 to 1,024 features the exponent of the error of sines is between −0.6 and −0.4",
            -0.6, -0.4, ("sines, deviation 0.25", "exponent"), kind="claim", source="theorem 1",
        ),
        Claim(
            "deviation 4: 1,024 positive features have a lower error than as many sines and cosines, whose variance stays where scores are low",
            measured(*error("sines", 4.0, 1024)) - measured(*error("positive", 4.0, 1024)) >= 0,
            source="Choromanski et al., section 2.3",
        ),
        above("overwrite: with a gate at least 10 points above none", GATE, NO_GATE, 0.1, source="section 3.2"),
        above("overwrite: without a gate at most 10 points below linear attention, whose state has as many rows", NO_GATE, LINEAR, -0.1),
    ),
    pictures=(
        Curves(metric="error", file="error", x="features", y="relative error", title="Estimates of softmax attention", log="xy"),
        validation_curves("accuracy", "overwrite"),
    ),
)  # fmt: skip

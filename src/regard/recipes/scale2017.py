"""Without the factor 1/√d, scores of long queries saturate the softmax, and the model learns more slowly; short queries do not need it.

Paper: Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, section 3.2.1 and footnote 4.
Run:   regard run scale2017        Takes: three minutes on one CPU core; three seeds of four small models, and of a measurement.

At the start: queries and 64 keys with independent entries of mean 0 and variance 1, as in the footnote; entropy of the weights as a share of that of
equal ones, and the norm of the softmax's derivative. Learning: 0w0w with w of 31 out of 16 symbols, two layers of width 64 with one head, whose
queries and keys have 16 or 512 features. The first parameters are Xavier's, so that scores of 512 features begin with a deviation near 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..attention import Attention, DotAttention, SoftmaxAttention
from ..layers import MultiHead, init_xavier
from ..patterns import causal
from ._engine import Claim, Curves, Recipe, RecipeFacts, above, at_least, at_most, measured, validation_curves
from ._engine.puzzles import Duplicate
from ._engine.stacks import StackVariant, puzzle_training

KEYS, SIZES, WIDTH = 64, (4, 16, 64, 256, 1024), 64
SHORT, LONG = 16, 512  # features of the heads that learn
SCALED, UNSCALED = "first weights, scaled", "first weights, unscaled"


@dataclass(frozen=True)
class FirstWeights:
    """Entropy of the weights, and the norm of their derivative with respect to the scores, by size of the head."""

    attention: Callable[[], Attention]

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        found: dict[str, float] = {}
        for size in SIZES:
            q, k = torch.randn(1, 256, 1, size), torch.randn(1, KEYS, 1, size)
            p_LM = self.attention().weights(q, k)[0, 0].double()
            derivative_LMM = torch.diag_embed(p_LM) - p_LM[:, :, None] * p_LM[:, None]
            found[f"entropy, {size} features"] = float(-(p_LM * p_LM.clamp(min=1e-300).log()).sum(-1).mean()) / math.log(KEYS)
            found[f"derivative, {size} features"] = float(derivative_LMM.flatten(1).norm(dim=1).mean())
        return found


@dataclass(frozen=True, kw_only=True)
class WideHead:
    """A factory of MultiHead layers with one head of any size."""

    attention: Callable[[], Attention]
    head_dim: int

    def __call__(self) -> nn.Module:
        heads = MultiHead(WIDTH, 1, self.attention(), head_dim=self.head_dim)
        init_xavier(heads)
        return heads


def variant(attention: Callable[[], Attention], head_dim: int) -> StackVariant:
    mixer = WideHead(attention=attention, head_dim=head_dim)
    return StackVariant(puzzle=Duplicate(), mixer=mixer, width=WIDTH, pattern=causal, train=puzzle_training(250, 2e-3))


recipe = Recipe(
    facts=RecipeFacts("scale2017", 2017, "Attention is all you need", "arXiv:1706.03762", "three minutes"),
    question="What does the factor 1/√d do for the softmax, and for learning?",
    variants={
        SCALED: FirstWeights(SoftmaxAttention),
        UNSCALED: FirstWeights(DotAttention),
        **{f"scaled, {size} features": variant(SoftmaxAttention, size) for size in (SHORT, LONG)},
        **{f"unscaled, {size} features": variant(DotAttention, size) for size in (SHORT, LONG)},
    },
    claims=(
        at_least(
            "scaled: the entropy of the first weights is at least 0.8 of that of equal ones, at every size", 0.8,
            *((SCALED, f"entropy, {size} features") for size in SIZES), kind="control", source="footnote 4",
        ),
        at_most(
            "unscaled: with 1,024 features it is at most 0.1", 0.1, (UNSCALED, "entropy, 1024 features"), kind="control", source="footnote 4"
        ),
        Claim(
            "unscaled: the softmax has a smaller derivative with 1,024 features than with 16, by a factor of four; scaled: by less than 1.5",
            measured(UNSCALED, "derivative, 16 features") / measured(UNSCALED, "derivative, 1024 features") >= 4,
            measured(SCALED, "derivative, 16 features") / measured(SCALED, "derivative, 1024 features") <= 1.5,
            source="section 3.2.1",
        ),
        above(
            f"after equal steps, with heads of {LONG}, scaled is at least 10 points above unscaled",
            f"scaled, {LONG} features", f"unscaled, {LONG} features", 0.1, source="section 3.2.1",
        ),
        Claim(
            f"with heads of {SHORT}, unscaled is at most 5 points below scaled",
            measured(f"unscaled, {SHORT} features") - measured(f"scaled, {SHORT} features") >= -0.05,
            source="section 3.2.1",
            learned=(measured(f"scaled, {SHORT} features") >= 0.5,),
        ),
    ),
    pictures=(
        Curves(metric="entropy", file="entropy", x="features of the head", y="entropy / log n", title="First weights", log="x"),
        validation_curves("accuracy"),
    ),
)  # fmt: skip

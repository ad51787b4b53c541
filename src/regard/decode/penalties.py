r"""Penalties that make the scores of hypotheses comparable: for length, as log P falls with every token, and for untranslated words.

$$s(Y) = \frac{\log P(Y \mid X)}{lp(|Y|)} + \beta \sum_i \log \min\Big(\sum_j a_{ij},\, 1\Big)$$

$a_{ij}$ is the attention weight of target token $j$ on source token $i$; $|Y|$ includes the end token but not the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class LengthPenalty(Protocol):
    """lp(|Y|), the number that log P is divided by; monotone in the length."""

    def __call__(self, length: int) -> float: ...


@dataclass(frozen=True)
class GNMT:
    """lp = ((5 + |Y|) / 6)^α (Wu et al. 2016, eq. 14). α = 0 ranks by log P alone; a larger α favours longer hypotheses."""

    alpha: float = 0.6

    def __call__(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.alpha)


@dataclass(frozen=True)
class Power:
    """lp = |Y|^α, Hugging Face's `length_penalty`. α = 1 ranks by the mean log-probability per token."""

    alpha: float = 1.0

    def __call__(self, length: int) -> float:
        return float(length**self.alpha)


# A source token without any attention would give log 0; the smallest normal number keeps the formula finite in float32.
LEAST = torch.finfo(torch.float32).tiny


def coverage(sum_BM: Tensor, source_n_B: Tensor, beta: float) -> Tensor:
    """β Σ_i log min(Σ_j a_ij, 1), at most 0; sum_BM is Σ_j a_ij. Padding does not count."""
    log_BM = sum_BM.clamp(LEAST, 1.0).log()
    inside_BM = torch.arange(sum_BM.shape[1], device=sum_BM.device) < source_n_B[:, None]
    return beta * (log_BM * inside_BM).sum(-1)

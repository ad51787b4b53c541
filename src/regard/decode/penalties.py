r"""What makes scores of answers comparable: a longer answer multiplies more probabilities, a lazy one leaves words untranslated.

$$s(Y) = \frac{\log P(Y \mid X)}{lp(|Y|)} + \beta \sum_i \log \min\Big(\sum_j a_{ij},\, 1\Big)$$

$a_{ij}$ is how much target token $j$ looked at source token $i$; $|Y|$ counts the end token and not the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class LengthPenalty(Protocol):
    """lp(|Y|), the number that log P is divided by. Never falls or never rises with the length."""

    def __call__(self, length: int) -> float: ...


@dataclass(frozen=True)
class GNMT:
    """lp = ((5 + |Y|) / 6)^α (Wu et al. 2016, eq. 14). α = 0 ranks by log P alone; the larger, the longer the answers."""

    alpha: float = 0.6

    def __call__(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.alpha)


@dataclass(frozen=True)
class Power:
    """lp = |Y|^α, Hugging Face's `length_penalty`. α = 1 ranks by the mean log-probability of a token."""

    alpha: float = 1.0

    def __call__(self, length: int) -> float:
        return float(length**self.alpha)


# A source token that nothing looked at would give log 0. The smallest normal number keeps the formula where float32 can hold it.
LEAST = torch.finfo(torch.float32).tiny


def coverage(looked_BM: Tensor, source_n_B: Tensor, beta: float) -> Tensor:
    """β Σ_i log min(Σ_j a_ij, 1), at most 0: looked_BM is Σ_j a_ij. Padding does not count: nobody should look there."""
    log_BM = looked_BM.clamp(LEAST, 1.0).log()
    inside_BM = torch.arange(looked_BM.shape[1], device=looked_BM.device) < source_n_B[:, None]
    return beta * (log_BM * inside_BM).sum(-1)

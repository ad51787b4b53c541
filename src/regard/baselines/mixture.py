r"""Mixtures of Gaussians with diagonal covariances, fitted to each set by expectation maximization: what a network that clusters can at most hope for.

$$r_{ic} \propto \pi_c\, \mathcal N(x_i; \mu_c, \sigma_c^2) \qquad \pi_c = \tfrac1n \sum_i r_{ic} \qquad
  \mu_c = \frac{\sum_i r_{ic} x_i}{\sum_i r_{ic}} \qquad \sigma_c^2 = \frac{\sum_i r_{ic} (x_i - \mu_c)^2}{\sum_i r_{ic}} + ε$$

Dempster, Laird and Rubin 1977.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FLOOR = 1e-6  # added to variances, as scikit-learn does
LOG_STD = (-5.0, 5.0)  # bounds of what a network gives: a density has no largest value, and one item would take it all


class Mixture(NamedTuple):
    """A mixture per set: C components with a share, a mean and a standard deviation per coordinate."""

    log_share_BC: Tensor  # logarithms of the shares
    mean_BCI: Tensor  # means
    std_BCI: Tensor  # standard deviations

    @classmethod
    def of(cls, out_BCN: Tensor) -> Mixture:
        """Make a mixture from 1 + 2 I outputs of a network per component: logits of the shares, means, logarithms of the deviations.

        Args:
            out_BCN: outputs.
        """
        share_BC1, mean_BCI, log_std_BCI = out_BCN.split((1, out_BCN.shape[-1] // 2, out_BCN.shape[-1] // 2), -1)
        return cls(share_BC1.squeeze(-1).log_softmax(-1), mean_BCI, log_std_BCI.clamp(*LOG_STD).exp())

    def joint(self, x_BLI: Tensor) -> Tensor:
        """log π_c N(x_i; μ_c, σ_c²) of each item and component, (B, L, C).

        Args:
            x_BLI: items.
        """
        z_BLCI = (x_BLI.unsqueeze(2) - self.mean_BCI.unsqueeze(1)) / self.std_BCI.unsqueeze(1)
        log_normal_BLC = -0.5 * z_BLCI.square().sum(-1) - (
            self.std_BCI.log().sum(-1) + 0.5 * x_BLI.shape[-1] * math.log(2 * math.pi)
        ).unsqueeze(1)
        return self.log_share_BC.unsqueeze(1) + log_normal_BLC

    def log_density(self, x_BLI: Tensor) -> Tensor:
        """log p(x_i) of each item, (B, L).

        Args:
            x_BLI: items.
        """
        return self.joint(x_BLI).logsumexp(-1)


def fit_mixture(x_BLI: Tensor, n_B: Tensor, components: int, *, restarts: int = 10, steps: int = 100, seed: int = 0) -> Mixture:
    """The best of several fits to each set, from different items as first means.

    Args:
        x_BLI: items, padded.
        n_B: number of items of each set.
        components: number of components.
        restarts: number of fits.
        steps: steps of each fit.
        seed: seed of the items that are chosen.

    Shape: x_BLI, n_B → log_share_BC, mean_BCI, std_BCI.
    """
    generator, x_BLI = torch.Generator().manual_seed(seed), x_BLI.double()
    there_BL = torch.arange(x_BLI.shape[1]) < n_B[:, None]
    best, best_B = None, torch.full((len(x_BLI),), -math.inf, dtype=torch.float64)
    for _ in range(restarts):
        found = _fit(x_BLI, there_BL, _first_means(x_BLI, there_BL, components, generator), steps)
        score_B = (found.log_density(x_BLI) * there_BL).sum(1)
        if best is None:
            best, best_B = found, score_B
            continue
        better_B = score_B > best_B
        best_B = torch.where(better_B, score_B, best_B)
        best = Mixture(*(torch.where(better_B.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in zip(found, best, strict=True)))
    assert best is not None
    return best


def _first_means(x_BLI: Tensor, there_BL: Tensor, components: int, generator: torch.Generator) -> Tensor:
    """Items as means, each drawn in proportion to its squared distance from those before (k-means++)."""
    chosen = list[Tensor]()
    weight_BL = there_BL.double()
    for _ in range(components):
        weight_BL = torch.where(weight_BL.sum(1, keepdim=True) > 0, weight_BL, there_BL.double())
        at_B1 = torch.multinomial(weight_BL, 1, generator=generator)
        chosen.append(x_BLI.gather(1, at_B1.unsqueeze(-1).expand(-1, -1, x_BLI.shape[-1])))
        distance_BL = torch.stack([(x_BLI - one).square().sum(-1) for one in chosen]).amin(0)
        weight_BL = distance_BL * there_BL
    return torch.cat(chosen, 1)


def _fit(x_BLI: Tensor, there_BL: Tensor, mean_BCI: Tensor, steps: int) -> Mixture:
    weight_BL1, n_B1 = there_BL.double().unsqueeze(-1), there_BL.sum(1, keepdim=True).double()
    middle_B1I = (x_BLI * weight_BL1).sum(1, keepdim=True) / n_B1.unsqueeze(-1)
    variance_B1I = ((x_BLI - middle_B1I).square() * weight_BL1).sum(1, keepdim=True) / n_B1.unsqueeze(-1)
    C = mean_BCI.shape[1]
    mixture = Mixture(mean_BCI.new_full(mean_BCI.shape[:2], -math.log(C)), mean_BCI, (variance_B1I / C + FLOOR).sqrt().expand_as(mean_BCI))
    for _ in range(steps):
        mixture = maximize(x_BLI, mixture.joint(x_BLI).softmax(-1) * weight_BL1)
    return mixture


def maximize(x_BLI: Tensor, weight_BLC: Tensor) -> Mixture:
    """The mixture that fits best, given the share of each item that belongs to each component.

    Args:
        x_BLI: items.
        weight_BLC: shares of the items; zeros for padding.

    Shape: x_BLI, weight_BLC → log_share_BC, mean_BCI, std_BCI.
    """
    total_BC = weight_BLC.sum(1) + 10 * torch.finfo(x_BLI.dtype).eps
    mean_BCI = torch.einsum("blc,bli->bci", weight_BLC, x_BLI) / total_BC.unsqueeze(-1)
    apart_BLCI = (x_BLI.unsqueeze(2) - mean_BCI.unsqueeze(1)).square()
    variance_BCI = torch.einsum("blc,blci->bci", weight_BLC, apart_BLCI) / total_BC.unsqueeze(-1) + FLOOR
    return Mixture((total_BC / total_BC.sum(1, keepdim=True)).log(), mean_BCI, variance_BCI.sqrt())

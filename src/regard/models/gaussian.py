r"""Gaussians with independent coordinates, as networks give them: density, divergence, samples.

$$\log \mathcal N(y; \mu, \sigma^2) = -\tfrac12\, \frac{(y - \mu)^2}{\sigma^2} - \log \sigma - \tfrac12 \log 2\pi$$
$$\mathrm{KL}(q \,\|\, p) = \log \frac{\sigma_p}{\sigma_q} + \frac{\sigma_q^2 + (\mu_q - \mu_p)^2}{2 \sigma_p^2} - \tfrac12$$
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Gaussian(NamedTuple):
    """Independent normal distributions; the last axis has the coordinates."""

    mean: Tensor  # means
    std: Tensor  # standard deviations

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of each point, summed over its coordinates.

        Args:
            y: points.
        """
        z = (y - self.mean) / self.std
        return -(0.5 * z.square() + self.std.log() + 0.5 * math.log(2 * math.pi)).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """Divergence KL(self ‖ other) in nats, summed over the coordinates.

        Args:
            other: the second distribution.
        """
        ratio = (self.std / other.std).square()
        return 0.5 * (ratio + ((self.mean - other.mean) / other.std).square() - ratio.log() - 1).sum(-1)

    def sample(self) -> Tensor:
        """One sample of each, through which gradients pass."""
        return self.mean + self.std * torch.randn_like(self.mean)

r"""The distribution of the next pen point: a mixture of bivariate Gaussians for where it is, a Bernoulli for whether the pen is lifted.

$$-\log p(x, y, e) = -\log \sum_j \pi_j\, \mathcal N\big((x, y);\, \mu_j, \sigma_j, \rho_j\big) - \begin{cases} \log \epsilon & e = 1 \\
  \log(1 - \epsilon) & e = 0 \end{cases}$$
$$\mathcal N = \frac{\exp\!\big(-Z / 2(1 - \rho^2)\big)}{2\pi \sigma_1 \sigma_2 \sqrt{1 - \rho^2}}, \quad
  Z = z_1^2 + z_2^2 - 2\rho z_1 z_2, \quad z = \frac{(x, y) - \mu}{\sigma}$$

It is a density, so its logarithm may be positive and the loss negative. Graves 2013, arXiv:1308.0850, eq. 15 to 25.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import choose, normal, uniform

LOG_STD = (-5.0, 5.0)  # bounds of log σ: a density has no largest value, and one point would take it all
MAX_RHO = 0.999
PER_COMPONENT = 6  # numbers: π, μ₁, μ₂, σ₁, σ₂, ρ


class PenMixture(NamedTuple):
    """M components per position; the letters before the last axes are any batch."""

    log_pi_M: Tensor
    mean_M2: Tensor
    log_std_M2: Tensor
    rho_M: Tensor
    lift: Tensor  # logit of the Bernoulli

    @classmethod
    def of(cls, y_BLN: Tensor) -> PenMixture:
        """Make a mixture from the 6 M + 1 outputs of a linear layer: π̂, μ̂, σ̂, ρ̂ and ê become π = softmax, μ, σ = exp, ρ = tanh, ε = sigmoid."""
        components = (y_BLN.shape[-1] - 1) // PER_COMPONENT
        pi, mean, log_std, rho, lift = y_BLN.split((components, 2 * components, 2 * components, components, 1), -1)
        return cls(
            F.log_softmax(pi, -1),
            mean.unflatten(-1, (components, 2)),
            log_std.unflatten(-1, (components, 2)).clamp(*LOG_STD),
            MAX_RHO * torch.tanh(rho),
            lift.squeeze(-1),
        )

    def log_density(self, xy_2: Tensor) -> Tensor:
        """log Σ π N of each offset."""
        z_M2 = (xy_2.unsqueeze(-2) - self.mean_M2) * torch.exp(-self.log_std_M2)
        z1_M, z2_M = z_M2.unbind(-1)
        rest_M = 1 - self.rho_M.square()
        distance_M = (z_M2.square().sum(-1) - 2 * self.rho_M * z1_M * z2_M) / rest_M
        log_normal_M = -0.5 * (distance_M + rest_M.log()) - self.log_std_M2.sum(-1) - math.log(2 * math.pi)
        return torch.logsumexp(self.log_pi_M + log_normal_M, -1)

    def log_prob(self, points_3: Tensor) -> Tensor:
        """Log-likelihood in nats of each point (dx, dy, lifted)."""
        lifted = points_3[..., 2]
        return self.log_density(points_3[..., :2]) - F.binary_cross_entropy_with_logits(self.lift, lifted, reduction="none")

    def biased(self, bias: float) -> PenMixture:
        """A more careful writer: σ ← exp(σ̂ − b), π ← softmax(π̂ (1 + b)). With a large bias, the mean of the likeliest component."""
        return self._replace(log_pi_M=F.log_softmax(self.log_pi_M * (1 + bias), -1), log_std_M2=self.log_std_M2 - bias)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One point (dx, dy, lifted) per position."""
        shape = self.lift.shape
        component = choose(self.log_pi_M.exp().flatten(0, -2), generator).view(*shape, 1)
        pair = component.unsqueeze(-1).expand(*shape, 1, 2)
        mean_2, std_2 = self.mean_M2.gather(-2, pair).squeeze(-2), self.log_std_M2.gather(-2, pair).squeeze(-2).exp()
        rho = self.rho_M.gather(-1, component)
        first, second = normal((2, *shape, 1), mean_2, generator)
        noise_2 = torch.cat([first, rho * first + (1 - rho.square()).sqrt() * second], -1)
        level = uniform(shape, mean_2, generator)
        return torch.cat([mean_2 + std_2 * noise_2, (level < self.lift.sigmoid()).to(mean_2.dtype).unsqueeze(-1)], -1)

r"""Base of the neural processes: from the points of a function that are known, a distribution of its values anywhere.

$$r_i = \mathrm{MLP}_r(x_i, y_i) \qquad s_C = \tfrac1n \sum_i \mathrm{MLP}_s(x_i, y_i) \qquad
  q(z | s) = \mathcal N(\mu(s),\; 0.1 + 0.9\, \mathrm{sigmoid}\,\omega(s))$$
$$p(y | x_*, r_*, z) = \mathcal N(\mu,\; 0.1 + 0.9\, \mathrm{softplus}\,\omega), \quad (\mu, \omega) = \mathrm{MLP}(x_*, r_*, z)$$
$$\log p(y_T | x_T, C) \ge \mathbb E_{q(z | s_T)} \sum_{t \in T} \log p(y_t | x_t, r_t, z) - \mathrm{KL}(q(z | s_T) \,\|\, q(z | s_C))$$

A model says how the known points r_i become r_* of a target x_*: their mean, or attention. The targets T contain the context C; one encoder
gives both q(z | s_T), in training, and q(z | s_C), which is what predictions use.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadConfig, ShapeError
from ..kernels import normal
from ..layers import mean_pool
from .gaussian import Gaussian
from .model import Count, Depth, Model, ModelConfig, Size

LEAST_STD = 0.1  # of predictions and of z, as in the paper


@dataclass(frozen=True, kw_only=True)
class ProcessConfig(ModelConfig):
    inputs: Size = 1  # numbers that say where: coordinates of x
    outputs: Size = 1  # numbers that are predicted there: coordinates of y
    width: Size = 128  # hidden units, and size of r
    depth: Depth = 3  # linear layers of each encoder
    decoder_depth: Depth = 3  # linear layers of the decoder
    deterministic: bool = True  # the path of r; without it a prediction knows the context through z only
    latent: Count = 128  # size of z; 0: no latent path, so that all functions of a prediction are alike
    max_length: Size = 1024  # context points that a mechanism sized by length is built for; softmax attention has no limit

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.deterministic and not self.latent:
            raise BadConfig(f"{type(self).__name__}: deterministic=False and latent=0 leave no path from the context; use one of the two")


class ProcessModel(Model):
    """Encoders of points, a latent variable and a decoder. A model writes `_build_path` and `at_targets`.

    Shape: x_BCX, y_BCY, at_BTX → mean and deviation (B, S, T, Y) for S samples of z.
    """

    config: ProcessConfig

    def _build(self) -> None:
        c = self.config
        if c.deterministic:
            self.points = mlp(c.inputs + c.outputs, *[c.width] * c.depth)
            self._build_path()
        if c.latent:
            self.latent_points = mlp(c.inputs + c.outputs, *[c.width] * c.depth)
            self.latent = mlp(c.width, c.width, 2 * c.latent)
        self.decoder = mlp(c.inputs + c.width * c.deterministic + c.latent, *[c.width] * (c.decoder_depth - 1), 2 * c.outputs)

    def _build_path(self) -> None:
        """Create the submodules that take r of the points to r of the targets."""

    def at_targets(self, at_BTX: Tensor, x_BCX: Tensor, r_BCD: Tensor, c_B: Tensor) -> Tensor:
        """Compute r_BTD of the targets.

        Args:
            at_BTX: where values are wanted.
            x_BCX: where they are known.
            r_BCD: representations of the known points.
            c_B: number of known points.
        """
        raise NotImplementedError

    def _latent_items(self, s_BCD: Tensor, c_B: Tensor) -> Tensor:
        """Let points of the latent path exchange what they know, before their mean is taken."""
        return s_BCD

    def posterior(self, x_BCX: Tensor, y_BCY: Tensor, c_B: Tensor) -> Gaussian:
        """q(z | these points).

        Args:
            x_BCX: where values are known.
            y_BCY: the values.
            c_B: number of points; padding follows them.
        """
        s_BCD = self._latent_items(self.latent_points(torch.cat([x_BCX, y_BCY], -1)), c_B)
        mean_BZ, raw_BZ = self.latent(mean_pool(s_BCD, c_B)).chunk(2, -1)
        return Gaussian(mean_BZ, LEAST_STD + (1 - LEAST_STD) * raw_BZ.sigmoid())

    def decode(self, at_BTX: Tensor, x_BCX: Tensor, y_BCY: Tensor, c_B: Tensor, z_BSZ: Tensor | None) -> Gaussian:
        """Distributions of the values at targets, (B, S, T, Y), for S samples of z (one without a latent path).

        Args:
            at_BTX: where values are wanted.
            x_BCX: where they are known.
            y_BCY: the values.
            c_B: number of points that are known; padding follows them.
            z_BSZ: samples of z; None without a latent path.
        """
        S, T = 1 if z_BSZ is None else z_BSZ.shape[1], at_BTX.shape[1]
        parts = [at_BTX]
        if self.config.deterministic:
            parts.append(self.at_targets(at_BTX, x_BCX, self.points(torch.cat([x_BCX, y_BCY], -1)), c_B))
        given = torch.cat(parts, -1).unsqueeze(1).expand(-1, S, -1, -1)
        if z_BSZ is not None:
            given = torch.cat([given, z_BSZ.unsqueeze(2).expand(-1, -1, T, -1)], -1)
        mean, raw = self.decoder(given).chunk(2, -1)
        return Gaussian(mean, LEAST_STD + (1 - LEAST_STD) * F.softplus(raw))

    def forward(
        self,
        x_BCX: Tensor,
        y_BCY: Tensor,
        at_BTX: Tensor,
        c_B: Tensor | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Gaussian:
        """Predict the values at targets, (B, S, T, Y), with `samples` samples of z from the context; all functions share their noise.

        Args:
            x_BCX: where values are known.
            y_BCY: the values.
            at_BTX: where values are wanted.
            c_B: number of points that are known, where padding follows them; None: all.
            samples: number of samples of z.
            generator: random numbers of the samples; None: PyTorch's.
        """
        c = self.config
        if x_BCX.shape[-1] != c.inputs or at_BTX.shape[-1] != c.inputs or y_BCY.shape != (*x_BCX.shape[:2], c.outputs):
            raise ShapeError(
                f"{type(self).__name__} takes points (batch, points, {c.inputs}), their values (batch, points, {c.outputs}) and targets (batch, "
                f"targets, {c.inputs}), got {tuple(x_BCX.shape)}, {tuple(y_BCY.shape)} and {tuple(at_BTX.shape)}"
            )
        c_B = torch.full((len(x_BCX),), x_BCX.shape[1], device=x_BCX.device) if c_B is None else c_B
        z_BSZ = None
        if c.latent:
            mean_BZ, std_BZ = self.posterior(x_BCX, y_BCY, c_B)
            z_BSZ = mean_BZ.unsqueeze(1) + std_BZ.unsqueeze(1) * normal((samples, c.latent), mean_BZ, generator)
        return self.decode(at_BTX, x_BCX, y_BCY, c_B, z_BSZ)

    def bound(self, x_BLX: Tensor, y_BLY: Tensor, c_B: Tensor, n_B: Tensor) -> tuple[Tensor, Tensor]:
        """log_prob_BL of each point, with one z that has seen them all, and kl_B of what z tells beyond the context.

        The bound on log p of a function is the sum of the first over its points minus the second: both in nats per function.

        Args:
            x_BLX: points, those of the context first.
            y_BLY: their values.
            c_B: number of points of the context.
            n_B: number of points; padding follows them.
        """
        most = x_BLX.shape[1]
        z_B1Z, kl_B = None, x_BLX.new_zeros(len(x_BLX))
        if self.config.latent:
            every, context = self.posterior(x_BLX, y_BLY, n_B), self.posterior(x_BLX, y_BLY, c_B)
            z_B1Z, kl_B = every.sample().unsqueeze(1), every.kl(context)
        log_prob_BL = self.decode(x_BLX, x_BLX, y_BLY, c_B, z_B1Z).log_prob(y_BLY.unsqueeze(1)).squeeze(1)
        here_BL = torch.arange(most, device=x_BLX.device) < n_B[:, None]
        return log_prob_BL.masked_fill(~here_BL, 0), kl_B


def mlp(*sizes: int) -> nn.Sequential:
    """Make linear layers with a ReLU between two.

    Args:
        *sizes: number of features before the first layer and after each.
    """
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])

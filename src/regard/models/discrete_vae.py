r"""A discrete variational autoencoder: an image becomes a grid of codes, and a grid of codes an image.

$$q(z_i = k \mid x) = \mathrm{softmax}_k(e(x)_i) \qquad
  \tilde z_i = \mathrm{softmax}_k\big((e(x)_{ik} + g_{ik}) / τ\big),\; g \sim \mathrm{Gumbel}(0, 1) \qquad \hat x = d(\tilde z C)$$
$$-\mathrm{ELBO} = -\log p(x \mid \hat x) + β\,\mathrm{KL}\big(q(z \mid x) \,\|\, \mathrm{uniform}\big) \qquad \mathrm{KL} = \sum_i \big(\log K - H[q(z_i \mid x)]\big)$$

Sampling a code has no gradient; the Gumbel-softmax does, and becomes a sample as τ falls to 0. Pixels are normal around what the decoder draws, with one
standard deviation for all, which is learned. The paper's are logit-Laplace: their absolute error is least at the median, and the median of a drawing is its
background, so small networks draw nothing for thousands of steps.

Paper: Ramesh et al. 2021, "Zero-shot text-to-image generation", arXiv:2102.12092, section 2.1 and appendix A; Gumbel-softmax: Jang, Gu & Poole 2016,
       arXiv:1611.01144, and Maddison, Mnih & Teh 2016, arXiv:1611.00712.
"""

from __future__ import annotations

from math import log, pi
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import eval_mode

FIRST_LOGITS = 3.0  # standard deviation of the first logits of each code
MIN_LOG_STD = -4.0  # drawn images repeat exactly: without a bound the density of their pixels grows for ever


class Terms(NamedTuple):
    """The two terms of the negative ELBO, in nats per image."""

    reconstruction_B: Tensor
    kl_B: Tensor


class DiscreteVAE(nn.Module):
    """Strided convolutions to a grid of logits over codes, a codebook, and convolutions with up-sampling back to pixels in [0, 1]."""

    def __init__(self, channels: int, features: int, stride: int, codes: int):
        super().__init__()
        self.channels, halvings = channels, stride.bit_length() - 1
        # Every code has the same mean and variance over a batch, so none is dead from the start; and logits stand out from the Gumbel noise, else
        # the decoder learns to do without the codes before they mean anything.
        logits_norm = nn.BatchNorm2d(codes)
        nn.init.constant_(logits_norm.weight, FIRST_LOGITS)
        self.encoder = nn.Sequential(
            *(
                layer
                for n in range(halvings)
                for layer in (
                    nn.Conv2d(features if n else channels, features, 4, stride=2, padding=1),
                    nn.BatchNorm2d(features),
                    nn.ReLU(),
                )
            ),
            nn.Conv2d(features, features, 3, padding=1),
            nn.BatchNorm2d(features),
            nn.ReLU(),
            nn.Conv2d(features, codes, 1, bias=False),
            logits_norm,
        )
        self.codebook = nn.Embedding(codes, features)
        self.decoder = nn.Sequential(
            nn.Conv2d(features, features, 3, padding=1),
            nn.BatchNorm2d(features),
            nn.ReLU(),
            *(layer for _ in range(halvings) for layer in (nn.ConvTranspose2d(features, features, 4, stride=2, padding=1), nn.ReLU())),
            nn.Conv2d(features, channels, 3, padding=1),
        )
        self.log_std = nn.Parameter(torch.tensor(-2.0))

    def logits(self, x_BCHW: Tensor) -> Tensor:
        """logits_BMN of the codes of all cells, in raster order."""
        return self.encoder(2 * x_BCHW - 1).flatten(2).mT

    @torch.no_grad()
    def encode(self, x_BCHW: Tensor) -> Tensor:
        """The most likely code of each cell, codes_BM, also while the model trains: the statistics are those of its own training."""
        with eval_mode(self):
            return self.logits(x_BCHW).argmax(-1)

    def decode(self, z_BMD: Tensor) -> Tensor:
        """The mean of every pixel, x_BCHW, from a vector per cell."""
        side = int(z_BMD.shape[1] ** 0.5)
        return (1 + self.decoder(z_BMD.mT.unflatten(2, (side, side)))) / 2

    @torch.no_grad()
    def draw(self, codes_BM: Tensor) -> Tensor:
        """The image of each grid of codes, x_BCHW in [0, 1]."""
        with eval_mode(self):
            return self.decode(self.codebook(codes_BM)).clamp(0, 1)

    def terms(self, x_BCHW: Tensor, temperature: float) -> Terms:
        """The terms of the loss, with one relaxed sample per image."""
        logits_BMN = self.logits(x_BCHW).float()
        z_BMN = F.gumbel_softmax(logits_BMN, temperature, dim=-1)
        return Terms(self._surprise(x_BCHW, self.decode(z_BMN @ self.codebook.weight)), kl_to_uniform(logits_BMN))

    def reconstruction(self, x_BCHW: Tensor) -> Tensor:
        """−log p(x | z) in nats per image, with the most likely codes."""
        return self._surprise(x_BCHW, self.decode(self.codebook(self.encode(x_BCHW))))

    def _surprise(self, x_BCHW: Tensor, mean_BCHW: Tensor) -> Tensor:
        """−log p(x) of each image."""
        return -log_normal(x_BCHW, mean_BCHW, MIN_LOG_STD + F.softplus(self.log_std - MIN_LOG_STD)).flatten(1).sum(1)


def kl_to_uniform(logits_BMN: Tensor) -> Tensor:
    """Σ_i (log N − H[q_i]) of each image."""
    log_q_BMN = logits_BMN.log_softmax(-1)
    return (log(logits_BMN.shape[-1]) + (log_q_BMN.exp() * log_q_BMN).sum(-1)).sum(-1)


def log_normal(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """The log-density of each pixel."""
    return -((x - mean) * (-log_std).exp()).square() / 2 - log_std - log(2 * pi) / 2

r"""A discrete variational autoencoder: an image becomes a grid of codes, and a grid of codes an image.

$$q(z_i = k \mid x) = \mathrm{softmax}_k(e(x)_i) \qquad
  \tilde z_i = \mathrm{softmax}_k\big((e(x)_{ik} + g_{ik}) / τ\big),\; g \sim \mathrm{Gumbel}(0, 1) \qquad \hat x = d(\tilde z C)$$
$$-\mathrm{ELBO} = -\log p(x \mid \hat x) + β\,\mathrm{KL}\big(q(z \mid x) \,\|\, \mathrm{uniform}\big) \qquad \mathrm{KL} = \sum_i \big(\log K - H[q(z_i \mid x)]\big)$$

Sampling a code has no gradient; the Gumbel-softmax does, and becomes a sample as τ falls to 0. Pixels are logit-Laplace: a density on (0, 1),
where pixels are, unlike the normal one.

$$f(y \mid μ, b) = \frac{1}{2 b\,y(1 - y)} \exp\Big(-\frac{|\mathrm{logit}(y) - μ|}{b}\Big) \qquad y = (1 - 2ε)\,x + ε$$

Paper: Ramesh et al. 2021, "Zero-shot text-to-image generation", arXiv:2102.12092, section 2.1 and appendix A; Gumbel-softmax: Jang, Gu & Poole 2016,
       arXiv:1611.01144, and Maddison, Mnih & Teh 2016, arXiv:1611.00712.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 0.1  # pixels of 0 and 1 are at 0.1 and 0.9, where the logit is finite
MIN_LOG_SCALE = -2.0  # drawn images repeat exactly: without a bound the density of their pixels grows for ever


class Terms(NamedTuple):
    """The two terms of the negative ELBO, in nats per image."""

    reconstruction_B: Tensor
    kl_B: Tensor


class DiscreteVAE(nn.Module):
    """Strided convolutions to a grid of logits over codes, a codebook, and convolutions with up-sampling back to pixels in [0, 1]."""

    def __init__(self, channels: int, features: int, stride: int, codes: int):
        super().__init__()
        self.channels, halvings = channels, stride.bit_length() - 1
        self.encoder = nn.Sequential(
            *(
                layer
                for n in range(halvings)
                for layer in (
                    nn.Conv2d(features if n else channels, features, 4, stride=2, padding=1),
                    nn.GroupNorm(1, features),
                    nn.ReLU(),
                )
            ),
            nn.Conv2d(features, features, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(features, codes, 1),
        )
        self.codebook = nn.Embedding(codes, features)
        self.decoder = nn.Sequential(
            nn.Conv2d(features, features, 3, padding=1),
            nn.GroupNorm(1, features),
            nn.ReLU(),
            *(layer for _ in range(halvings) for layer in (nn.ConvTranspose2d(features, features, 4, stride=2, padding=1), nn.ReLU())),
            nn.Conv2d(features, 2 * channels, 3, padding=1),  # μ and log b
        )

    def logits(self, x_BCHW: Tensor) -> Tensor:
        """logits_BMN of the codes of all cells, in raster order."""
        return self.encoder(2 * x_BCHW - 1).flatten(2).mT

    @torch.no_grad()
    def encode(self, x_BCHW: Tensor) -> Tensor:
        """The most likely code of each cell, codes_BM."""
        return self.logits(x_BCHW).argmax(-1)

    def decode(self, z_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """μ and log b of every pixel, each x_BCHW, from a vector per cell."""
        side = int(z_BMD.shape[1] ** 0.5)
        mu, log_scale = self.decoder(z_BMD.mT.unflatten(2, (side, side))).chunk(2, 1)
        return mu, MIN_LOG_SCALE + F.softplus(log_scale)

    @torch.no_grad()
    def draw(self, codes_BM: Tensor) -> Tensor:
        """The image of each grid of codes, x_BCHW in [0, 1]."""
        mu, _ = self.decode(self.codebook(codes_BM))
        return ((mu.sigmoid() - EPSILON) / (1 - 2 * EPSILON)).clamp(0, 1)

    def terms(self, x_BCHW: Tensor, temperature: float) -> Terms:
        """The terms of the loss, with one relaxed sample per image."""
        logits_BMN = self.logits(x_BCHW).float()
        z_BMN = F.gumbel_softmax(logits_BMN, temperature, dim=-1)
        return Terms(-logit_laplace(x_BCHW, *self.decode(z_BMN @ self.codebook.weight)).flatten(1).sum(1), kl_to_uniform(logits_BMN))

    def reconstruction(self, x_BCHW: Tensor) -> Tensor:
        """−log p(x | z) in nats per image, with the most likely codes."""
        return -logit_laplace(x_BCHW, *self.decode(self.codebook(self.encode(x_BCHW)))).flatten(1).sum(1)


def kl_to_uniform(logits_BMN: Tensor) -> Tensor:
    """Σ_i (log N − H[q_i]) of each image."""
    log_q_BMN = logits_BMN.log_softmax(-1)
    return (log(logits_BMN.shape[-1]) + (log_q_BMN.exp() * log_q_BMN).sum(-1)).sum(-1)


def logit_laplace(x: Tensor, mu: Tensor, log_scale: Tensor) -> Tensor:
    """The log-density of each pixel in [0, 1]."""
    y = (1 - 2 * EPSILON) * x + EPSILON
    return -log(2) - log_scale - (y * (1 - y)).log() - (y.logit() - mu).abs() * (-log_scale).exp()

r"""Pixels in and out of an autoregressive image model: as categories, a position per channel, or as ordered values, a position per pixel.

$$\text{categorical: } p(x_t = n) = \mathrm{softmax}_n(W x_t) \qquad
  \text{logistics: } p(x) = \sum_k π_k \prod_c \Big[σ\Big(\frac{x_c + \frac12 - μ_{kc}}{s_{kc}}\Big) - σ\Big(\frac{x_c - \frac12 - μ_{kc}}{s_{kc}}\Big)\Big]$$

The lowest value takes everything below it and the highest everything above, so each channel of each component sums to one. The mean of
green depends linearly on red, that of blue on red and green, with coefficients that are predicted, too.

Both kinds speak of positions: `split` cuts images into values_BLE, E values per position, and `join` makes them images again.

Paper: Parmar et al. 2018, arXiv:1802.05751, sections 3.1 and 3.4; Salimans et al. 2017, "PixelCNN++", arXiv:1701.05517, section 2.1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import choose, float32_or_wider, uniform
from ..layers import Dropout, GridSinusoidal

MIN_LOG_SCALE = -7.0  # of values between −1 and 1: far below the distance of neighbours, and far from overflow


class Values(nn.Module):
    """Embeds values and their positions on the grid of the image; `step` is the size of a pixel of it in pixels of the grid.

    An image of low resolution is embedded on the grid of the full one, each of its pixels at the middle of the block it stands for: so
    attention finds the place in one image from the place in the other.
    """

    per_position: int

    def __init__(self, width: int, channels: int, levels: int, columns: int, step: int, dropout: float, positions: bool):
        super().__init__()
        self.channels, self.levels, self.step, self.pixels_per_row = channels, levels, step, columns
        per_pixel = channels // self.per_position  # positions
        self.columns = columns * per_pixel
        self.position = GridSinusoidal(width, self.columns * step) if positions else None
        self.dropout = Dropout(dropout)

    def split(self, pixels_BHWC: Tensor) -> Tensor:
        """values_BLE: pixels in raster order."""
        return pixels_BHWC.reshape(len(pixels_BHWC), -1, self.per_position)

    def join(self, values_BLE: Tensor) -> Tensor:
        """pixels_BHWC"""
        return values_BLE.reshape(len(values_BLE), -1, self.pixels_per_row, self.channels)

    def place(self, at_L: Tensor) -> Tensor:
        """Positions of this image as positions of the grid."""
        if self.step == 1:
            return at_L
        per_pixel, step = self.columns // self.pixels_per_row, self.step
        row, column = at_L // self.columns, at_L % self.columns
        pixel = column // per_pixel * step + step // 2
        return (row * step + step // 2) * self.columns * step + pixel * per_pixel + column % per_pixel

    def forward(self, values_BLE: Tensor, first: int, place_L: Tensor) -> Tensor:
        """x_BLD of the values at positions first, first + 1 …, encoded as at `place_L`."""
        return self.dropout(self.positioned(self.embed(values_BLE, first), place_L))

    def positioned(self, x_BLD: Tensor, place_L: Tensor) -> Tensor:
        """Add the encoding of rows and columns, if there is one."""
        return x_BLD if self.position is None else self.position.add(x_BLD, place_L)

    def embed(self, values_BLE: Tensor, first: int) -> Tensor:
        raise NotImplementedError


class Categories(Values):
    """A position per channel of each pixel, and a vector per channel and value."""

    per_position = 1

    def __init__(self, width: int, channels: int, levels: int, columns: int, step: int = 1, dropout: float = 0.0, positions: bool = True):
        super().__init__(width, channels, levels, columns, step, dropout, positions)
        self.table = nn.Embedding(channels * levels, width)

    def embed(self, values_BLE: Tensor, first: int) -> Tensor:
        channel_L = torch.arange(first, first + values_BLE.shape[1], device=values_BLE.device) % self.channels
        return self.table(values_BLE[..., 0] + channel_L * self.levels) * self.table.embedding_dim**0.5


class Ordinals(Values):
    """A position per pixel, and a linear map of its channels, values between −1 and 1."""

    def __init__(self, width: int, channels: int, levels: int, columns: int, step: int = 1, dropout: float = 0.0, positions: bool = True):
        self.per_position = channels
        super().__init__(width, channels, levels, columns, step, dropout, positions)
        self.linear = nn.Linear(channels, width)

    def embed(self, values_BLE: Tensor, first: int) -> Tensor:
        return self.linear(to_unit(values_BLE, self.levels, self.linear.weight.dtype))


class CategoricalOutput(nn.Module):
    """A softmax over the values of a channel; one matrix for all channels."""

    def __init__(self, width: int, channels: int, levels: int, mixtures: int):
        super().__init__()
        self.linear = nn.Linear(width, levels)

    def log_probs(self, x: Tensor, values: Tensor) -> Tensor:
        """ln p of the values, (…, 1) each, that x predicts: (…)"""
        return -F.cross_entropy(float32_or_wider(self.linear(x)).flatten(0, -2), values.flatten(), reduction="none").view(values.shape[:-1])

    def sample(self, x_BD: Tensor, temperature: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        """values_BE drawn from softmax(logits / temperature); temperature 0: the most likely."""
        return draw(float32_or_wider(self.linear(x_BD)), temperature, generator)[:, None]


class LogisticOutput(nn.Module):
    """A mixture of discretised logistic distributions over the values of a pixel."""

    def __init__(self, width: int, channels: int, levels: int, mixtures: int):
        super().__init__()
        self.channels, self.levels, self.mixtures = channels, levels, mixtures
        self.sizes = (1, channels, channels, channels * (channels - 1) // 2)  # per component: ln π, means, ln s, coefficients
        self.linear = nn.Linear(width, mixtures * sum(self.sizes))

    @torch.no_grad()
    def spread(self) -> None:
        """Means from −1 to 1 and scales of their distance: components that begin alike would stay alike."""
        _, mean, log_scale, _ = self.linear.bias.view(self.mixtures, -1).split(self.sizes, -1)
        mean.copy_(torch.linspace(-1, 1, self.mixtures + 2)[1:-1, None])
        log_scale.fill_(-math.log(self.mixtures))

    def components(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """ln π (…, K), means and ln s (…, K, channels), coefficients (…, K, pairs)."""
        each = float32_or_wider(self.linear(x)).unflatten(-1, (self.mixtures, -1))
        weight, mean, log_scale, coefficient = each.split(self.sizes, -1)
        return weight[..., 0].log_softmax(-1), mean, log_scale.clamp(min=MIN_LOG_SCALE), coefficient.tanh()

    def log_probs(self, x: Tensor, values: Tensor) -> Tensor:
        """ln p of the pixels, (…, channels) each, that x predicts: (…)"""
        weight, mean, log_scale, coefficient = self.components(x)
        v = to_unit(values, self.levels, mean.dtype).unsqueeze(-2)
        means = torch.stack([coupled(mean, coefficient, v, c) for c in range(self.channels)], -1)
        return (weight + log_discretised(v, means, log_scale, self.levels).sum(-1)).logsumexp(-1)

    def sample(self, x_BD: Tensor, temperature: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        """values_BE: a component from π^(1/temperature), then its channels in order, with scales s · temperature."""
        weight, *parts = self.components(x_BD)
        which_B11 = draw(weight, temperature, generator)[:, None, None]
        mean, log_scale, coefficient = (x.take_along_dim(which_B11, 1) for x in parts)  # (B, 1, …)
        values: list[Tensor] = []
        for c in range(self.channels):
            u = uniform((len(x_BD), 1), mean, generator).clamp(1e-6, 1 - 1e-6)
            drawn = to_unit(torch.stack(values, -1), self.levels, mean.dtype) if values else mean
            at = coupled(mean, coefficient, drawn, c) + temperature * log_scale[..., c].exp() * u.logit()
            values.append(to_level(at, self.levels))
        return torch.cat(values, -1)


def to_unit(values: Tensor, levels: int, dtype: torch.dtype) -> Tensor:
    """Values 0 … levels − 1 as numbers from −1 to 1."""
    return values.to(dtype) * (2 / (levels - 1)) - 1


def to_level(x: Tensor, levels: int) -> Tensor:
    """The nearest value of a number; below −1 the lowest, above 1 the highest."""
    return ((x + 1) * ((levels - 1) / 2)).round().clamp(0, levels - 1).long()


def coupled(mean: Tensor, coefficient: Tensor, v: Tensor, channel: int) -> Tensor:
    """The mean of one channel, given those before it, v: (…, channels)."""
    first = channel * (channel - 1) // 2
    terms = [coefficient[..., first + c] * v[..., c] for c in range(channel)]
    return sum(terms, mean[..., channel])


def log_discretised(v: Tensor, mean: Tensor, log_scale: Tensor, levels: int) -> Tensor:
    """ln [σ((v + d − μ)/s) − σ((v − d − μ)/s)] with 2d the distance of neighbours; open ends at the lowest and the highest value.

    σ(a) − σ(b) = σ(a) · σ(−b) · (1 − e^{b − a}): a sum of logarithms that loses nothing where the difference is tiny.
    """
    half, inverse = 1 / (levels - 1), (-log_scale).exp()
    upper, lower = (v + half - mean) * inverse, (v - half - mean) * inverse
    below, above = F.logsigmoid(upper), F.logsigmoid(-lower)
    within = below + above + torch.log(-torch.expm1(-2 * half * inverse))
    return torch.where(v < -1 + half, below, torch.where(v > 1 - half, above, within))


def draw(logits_BN: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """One index per row, from softmax(logits / temperature); the largest at temperature 0."""
    if temperature == 0:
        return logits_BN.argmax(-1)
    return choose((logits_BN / temperature).softmax(-1), generator)


Output = CategoricalOutput | LogisticOutput
KINDS: dict[str, tuple[type[Categories] | type[Ordinals], type[Output]]] = {
    "categorical": (Categories, CategoricalOutput),
    "logistics": (Ordinals, LogisticOutput),
}

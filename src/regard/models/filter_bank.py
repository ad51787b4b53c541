r"""The attention window of DRAW: a grid of N × N Gaussian filters with a centre, a stride, a width and a gain.

$$g_X = \tfrac{A + 1}{2}(\tilde g_X + 1), \quad g_Y = \tfrac{B + 1}{2}(\tilde g_Y + 1), \quad \delta = \tfrac{\max(A, B) - 1}{N - 1} \tilde\delta, \quad
  \mu_X^i = g_X + (i - \tfrac N2 - \tfrac12)\, \delta$$
$$F_X[i, a] = \tfrac{1}{Z} e^{-(a - \mu_X^i)^2 / 2\sigma^2}, \; \sum_a F_X[i, a] = 1, \qquad
  \mathrm{read}(x) = \gamma\, F_Y\, x\, F_X^\top, \qquad \mathrm{write}(w) = \tfrac1\gamma\, F_Y^\top w\, F_X$$

for an image of A columns and B rows; pixels a and filters i count from 1. Up to the gains, writing is the adjoint of reading. Rows of F are
normalised by a softmax, so that a window outside the image gives the pixels at its edge and not 0 / 0. Gregor et al. 2015,
arXiv:1502.04623, eq. 19 to 29.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

OUTPUTS = 5  # g̃_X, g̃_Y, log σ², log δ̃, log γ
LIMIT = 8.0  # bound of the three logarithms


class Window(NamedTuple):
    """Position and shape of a grid of filters, one number each per batch row: in pixels, counted from 1."""

    centre_x: Tensor
    centre_y: Tensor
    stride: Tensor
    std: Tensor
    gain: Tensor

    @classmethod
    def of(cls, p_B5: Tensor, filters: int, image_size: tuple[int, int]) -> Window:
        """Make a window from g̃_X, g̃_Y, log σ², log δ̃, log γ."""
        height, width = image_size
        x, y, *logs = p_B5.unbind(-1)
        log_variance, log_stride, log_gain = (each.clamp(-LIMIT, LIMIT) for each in logs)
        return cls(
            (width + 1) / 2 * (x + 1),
            (height + 1) / 2 * (y + 1),
            (max(height, width) - 1) / max(filters - 1, 1) * log_stride.exp(),
            (log_variance / 2).exp(),
            log_gain.exp(),
        )

    def filters(self, count: int, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """F_Y (B, N, rows) and F_X (B, N, columns)."""
        height, width = image_size
        return (
            _filters(self.centre_y, self.stride, self.std, count, height),
            _filters(self.centre_x, self.stride, self.std, count, width),
        )

    def footprint(self, count: int, image_size: tuple[int, int]) -> Tensor:
        """Share of each pixel in a glimpse, (B, rows, columns): the mean of all filters, which sums to one."""
        y_BNH, x_BNW = self.filters(count, image_size)
        return y_BNH.mean(1).unsqueeze(2) * x_BNW.mean(1).unsqueeze(1)

    def stack(self) -> Tensor:
        """The five numbers side by side, (B, 5)."""
        return torch.stack(self, -1)


def _filters(centre_B: Tensor, stride_B: Tensor, std_B: Tensor, count: int, size: int) -> Tensor:
    i_N = torch.arange(1, count + 1, dtype=centre_B.dtype, device=centre_B.device)
    a_A = torch.arange(1, size + 1, dtype=centre_B.dtype, device=centre_B.device)
    mean_BN = centre_B[:, None] + (i_N - count / 2 - 0.5) * stride_B[:, None]
    return torch.softmax(-((a_A - mean_BN.unsqueeze(2)) ** 2) / (2 * std_B[:, None, None] ** 2), -1)


def read(x_BCHW: Tensor, window: Window, count: int) -> Tensor:
    """The glimpse, (B, C, N, N)."""
    y_BNH, x_BNW = window.filters(count, (x_BCHW.shape[2], x_BCHW.shape[3]))
    return window.gain[:, None, None, None] * (y_BNH.unsqueeze(1) @ x_BCHW @ x_BNW.unsqueeze(1).mT)


def write(w_BCNN: Tensor, window: Window, image_size: tuple[int, int]) -> Tensor:
    """A patch placed on the canvas, (B, C, rows, columns)."""
    y_BNH, x_BNW = window.filters(w_BCNN.shape[-1], image_size)
    return (y_BNH.unsqueeze(1).mT @ w_BCNN @ x_BNW.unsqueeze(1)) / window.gain[:, None, None, None]


def window_layer(width: int, filters: int, image_size: tuple[int, int]) -> nn.Linear:
    """The linear layer that predicts a window; at first it covers the image, and its Gaussians overlap: σ is half a stride.

    With σ of one pixel, as zeros would give it, most pixels are between the filters and get no gradient; training then collapses.
    """
    layer = nn.Linear(width, OUTPUTS)
    stride = (max(image_size) - 1) / max(filters - 1, 1)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.0, 0.0, 2 * math.log(max(stride, 1.0) / 2), 0.0, 0.0]))
        layer.weight.mul_(0.5)
    return layer

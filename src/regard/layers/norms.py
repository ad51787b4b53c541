r"""Norms keep the scale of features constant from layer to layer, so that deep stacks train.

$$\mathrm{LayerNorm}(x) = g\,\frac{x - \bar x}{\sqrt{\mathrm{var}(x) + ε}} + b \qquad
  \mathrm{RMSNorm}(x) = g\,\frac{x}{\sqrt{\overline{x^2} + ε}}$$

Layers take a norm as a factory `width -> module`: `LayerNorm`, `RMSNorm`, `partial(LayerNorm, eps=1e-12)`, `NoNorm`.

Paper: Ba, Kiros & Hinton 2016, arXiv:1607.06450; Zhang & Sennrich 2019, "Root mean square layer normalization",
       arXiv:1910.07467.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import LayerNorm as LayerNorm  # nothing to add to PyTorch's own

from ..kernels import float32_or_wider

Norm = Callable[[int], nn.Module]


class RMSNorm(nn.Module):
    """Features divided by their root mean square, times a learned gain: no mean, no shift.

    Computed in float32 at least, whatever the dtype of x: squares of half-precision numbers overflow. The gain is applied
    after the cast back to the dtype of x, as the published checkpoints expect.
    """

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        precise = float32_or_wider(x)
        precise = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * precise.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class NoNorm(nn.Identity):
    """The identity: for ablations, and for models without norms."""

    def __init__(self, width: int):
        super().__init__()

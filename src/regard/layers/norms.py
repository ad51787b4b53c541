r"""Norms keep the size of features steady from layer to layer, so that deep stacks train.

$$\mathrm{LayerNorm}(x) = g\,\frac{x - \bar x}{\sqrt{\mathrm{var}(x) + ε}} + b \qquad
  \mathrm{RMSNorm}(x) = g\,\frac{x}{\sqrt{\overline{x^2} + ε}}$$

A layer takes a norm as a factory `width -> module`: `LayerNorm`, `RMSNorm`, `partial(LayerNorm, eps=1e-12)`, `NoNorm`.

Paper: Ba, Kiros & Hinton 2016, arXiv:1607.06450; Zhang & Sennrich 2019, "Root mean square layer normalization",
       arXiv:1910.07467.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import LayerNorm as LayerNorm  # nothing to add to PyTorch's own

Norm = Callable[[int], nn.Module]


class RMSNorm(nn.Module):
    """Features divided by their root mean square, times a learned gain: no mean, no shift.

    Computed in float32 at least, whatever the type of x: squares of half-precision numbers overflow. The gain multiplies
    after the way back to the type of x, as the published checkpoints expect.
    """

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        precise = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * precise.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class NoNorm(nn.Identity):
    """Leaves x as it is: for ablations, and for models without norms."""

    def __init__(self, width: int):
        super().__init__()

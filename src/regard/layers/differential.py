r"""Differential attention as a layer: each head's difference is normed before it is projected back.

$$\mathrm{DifferentialHeads}(x) = W_o\,(1 - \lambda_0)\,[\mathrm{RMS}(o_1); \dots; \mathrm{RMS}(o_H)] + b_o$$

A difference is small where both looks agree, and how small changes from head to head; the norm gives all the same size, and 1 − λ₀ the
gradients that a layer without the difference would have. A head is as wide as two of the heads it replaces.

Paper: Ye et al. 2024, "Differential transformer", arXiv:2410.05258, section 2.1, eq. 3.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import DifferentialAttention
from .multihead import MultiHead
from .positions import Position


class DifferentialHeads(MultiHead):
    """`MultiHead` of `heads` differential heads, for layer `depth`, counted from 0. The norm has no gain: `out` has one.

    Rotary positions must turn each look apart: `Rotary(layout="interleaved")`; halves would pair the features of the two.
    """

    def __init__(
        self, width: int, heads: int, depth: int = 0, *, kv_heads: int | None = None, bias: bool = True, position: Position | None = None
    ):
        attention = DifferentialAttention(heads=heads, width=width // heads, depth=depth)
        super().__init__(width, heads, attention, kv_heads=kv_heads, bias=bias, position=position)
        self.out = _NormedLinear(self.out, heads, 1 - attention.begin)


class _NormedLinear(nn.Linear):
    """A linear map of heads that are normed first, so that what is known of `MultiHead.out` stays true."""

    def __init__(self, linear: nn.Linear, heads: int, factor: float):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None)
        self.heads, self.factor = heads, factor

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLHV = x_BLD.unflatten(-1, (self.heads, -1))
        return super().forward(self.factor * F.rms_norm(x_BLHV, x_BLHV.shape[-1:], eps=1e-5).flatten(-2))

r"""Differential attention as a layer: the difference of each head is normed before the output projection.

$$\mathrm{DifferentialHeads}(x) = W_o\,(1 - \lambda_0)\,[\mathrm{RMS}(o_1); \dots; \mathrm{RMS}(o_H)] + b_o$$

The difference is small where both attention maps agree, by an amount that varies between heads; the norm gives all heads the same
scale, and 1 − λ₀ the gradients of a layer without the difference. A head is as wide as two of the heads it replaces.

Paper: Ye et al. 2024, "Differential transformer", arXiv:2410.05258, section 2.1, eq. 3.
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import DifferentialAttention
from .multihead import MultiHead
from .positions import Position


class DifferentialHeads(MultiHead):
    """`MultiHead` with `heads` differential heads, for layer `depth`, counted from 0. The norm has no gain: `out` absorbs it.

    Rotary positions must rotate the two maps separately: `Rotary(layout="interleaved")`; halves would pair features of both.
    """

    def __init__(
        self, width: int, heads: int, depth: int = 0, *, kv_heads: int | None = None, bias: bool = True, position: Position | None = None
    ):
        attention = DifferentialAttention(heads=heads, head_dim=width // heads, depth=depth)
        norm = partial(_ScaledRMSNorm, factor=1 - attention.initial_share)
        super().__init__(width, heads, attention, kv_heads=kv_heads, bias=bias, head_norm=norm, position=position)


class _ScaledRMSNorm(nn.Module):
    """RMS norm without a gain, times a constant."""

    def __init__(self, width: int, factor: float):
        super().__init__()
        self.width, self.factor = width, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * F.rms_norm(x, (self.width,), eps=1e-5)

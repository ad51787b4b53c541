r"""GPT's nonlinearity without tanh: the same function through the sigmoid, and its derivative computed in the same pass.

    gelu(x) = x/2 · (1 + tanh(c (x + 0.044715 x³))) = x · σ(u),   u = x (a + b x²),  a = 2c = √(8/π),  b = 0.044715 a
    gelu'(x) = σ(u) + x σ(u) (1 − σ(u)) (a + 3 b x²)

PyTorch's CPU kernel computes a tanh per element in the forward pass and another in the backward pass, 3.3 ns each where a sigmoid takes
0.9 (one AVX2 thread). Here a slice at a time goes through a dozen cheap operations while it is in cache, and the forward pass saves the
derivative instead of x, so that the backward pass is one multiplication.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .numerics import first_derivatives_only

SLICE = 2**17  # elements at a time: 512 kB in float32
A = math.sqrt(8 / math.pi)
B = 0.044715 * A


def gelu_tanh(x: Tensor) -> Tensor:
    """x · Φ(x) by the tanh approximation.

    Args:
        x: any tensor.

    Shape: x → out, elementwise.
    """
    plain = not x.is_cpu or x.dtype not in (torch.float32, torch.float64) or not x.is_contiguous()
    if plain or x.numel() < SLICE or torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    return _Gelu.apply(x, torch.is_grad_enabled() and x.requires_grad)  # type: ignore[no-untyped-call]


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, recording: bool) -> Tensor:
        y = torch.empty_like(x)
        slope = torch.empty_like(x) if recording else None
        parts = x.view(-1).split(SLICE), y.view(-1).split(SLICE), (y if slope is None else slope).view(-1).split(SLICE)
        for x_S, y_S, slope_S in zip(*parts, strict=True):
            inner_S = torch.mul(x_S, x_S).mul_(B).add_(A)  # a + b x²
            sigma_S = torch.mul(inner_S, x_S).sigmoid_()
            torch.mul(x_S, sigma_S, out=y_S)
            if slope is not None:
                rest_S = torch.addcmul(y_S, y_S, sigma_S, value=-1)  # x σ (1 − σ)
                torch.addcmul(sigma_S, rest_S, inner_S.mul_(3).sub_(2 * A), out=slope_S)
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return d_y * slope, None

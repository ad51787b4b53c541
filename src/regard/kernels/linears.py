"""y = x Wᵀ + b for a few rows: most of the work of a decoding step.

For a few rows and at least as many output as input features, PyTorch's CPU matmul x Wᵀ takes up to twice as long as W xᵀ, which gives the
same numbers transposed; and one row takes longer than the same row twice. One AVX2 thread, ms:

    features        rows    x Wᵀ    W xᵀ        features        rows    x Wᵀ    W xᵀ
    768 → 50257     1       12.2    10.3        768 → 2304      1       0.57    0.49
                    2       25.7    10.3        (one layer)     2       0.98    0.47
                    4       24.1    12.7                        4       0.81    0.65
                    8       28.5    33.0        3072 → 768      4       1.08    1.96

With several threads x Wᵀ of a few rows still uses only one, and W xᵀ all of them: 3072 → 768, 4 rows, two threads 0.99 and 0.60 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .numerics import first_derivatives_only

FEW = range(1, 6)
LARGE = 2**18  # entries of W: below that, or if N < 2 K, there is nothing to gain for one row


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b.

    Args:
        x: input.
        weight: matrix W.
        bias: bias b; None: none.

    Shape: x (…, in features), weight (out features, in features) → out (…, out features).
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not x.is_cpu or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    rows, (N, K) = x.shape[:-1].numel(), weight.shape
    if rows not in FEW or (N < K and torch.get_num_threads() == 1) or (rows == 1 and (N < 2 * K or N * K < LARGE)):
        return F.linear(x, weight, bias)
    x_KR = (x.reshape(-1, K) if rows > 1 else torch.cat([x.reshape(1, K)] * 2)).t()
    y_NR = torch.mm(weight, x_KR) if bias is None else torch.addmm(bias[:, None], weight, x_KR)
    return y_NR[:, :rows].t().contiguous().view(*x.shape[:-1], N)  # the next operation wants contiguous features


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x), by `fast_linear` if the layer is a plain nn.Linear without hooks.

    Args:
        layer: linear layer.
        x: input.

    Shape: x (…, in features) → out (…, out features).
    """
    if torch.is_grad_enabled() or type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return layer(x)
    return fast_linear(x, layer.weight, layer.bias)


def split_linear(layer: nn.Linear, x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """layer(x) split into parts of these sizes, whose gradients are not concatenated in the backward pass.

    For q, k and v of 4,096 tokens that saves 24 MiB and a copy.

    Args:
        layer: linear layer.
        x: input.
        sizes: number of output features of each part.

    Shape: x (…, in features) → a tensor (…, size) per part.
    """
    special = type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks
    if special or not torch.is_grad_enabled() or not x.is_cpu or torch.is_autocast_enabled("cpu"):
        return torch.split(apply_linear(layer, x), list(sizes), -1)
    return SplitLinear.apply(x, layer.weight, layer.bias, sizes)  # type: ignore[no-untyped-call]


class SplitLinear(torch.autograd.Function):
    """dx = Σ d_i W_i,  dW_i = d_iᵀ x: every matmul writes its result in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        return torch.split(F.linear(x, weight, bias), list(sizes), -1)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_RK = x.reshape(-1, weight.shape[1])
        want_x, want_weight, want_bias, _ = ctx.needs_input_grad
        dx_RK = torch.empty_like(x_RK) if want_x else None
        d_weight = torch.empty_like(weight) if want_weight else None
        d_bias = weight.new_empty(len(weight)) if want_bias else None
        first = 0
        for d, size in zip(given, ctx.sizes, strict=True):
            rows, d_RN = slice(first, first + size), d.reshape(-1, size)
            if dx_RK is not None:
                torch.addmm(dx_RK, d_RN, weight[rows], beta=1 if first else 0, out=dx_RK)
            if d_weight is not None:
                torch.mm(d_RN.t(), x_RK, out=d_weight[rows])
            if d_bias is not None:
                torch.sum(d_RN, 0, out=d_bias[rows])
            first += size
        return None if dx_RK is None else dx_RK.view(x.shape), d_weight, d_bias, None

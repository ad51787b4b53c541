r"""Label-smoothed cross-entropy fused with the output projection: the logits of all rows never exist at once.

    z = x Wᵀ + b        loss = Σ_rows  log Σ_n exp z_n − (1 − ε) z_target − (ε / N) Σ_n z_n

For 4,000 tokens and a vocabulary of 32,000 the logits take half a gigabyte, and their gradient as much again. Here rows are processed a
chunk at a time, and each chunk's part of the three gradients is computed while its logits are there: ∂loss/∂z = softmax(z) −
(1 − ε) onehot − ε / N. The backward pass only multiplies by the incoming gradient.

ε is spread over all N classes, the target included, as `torch.nn.functional.cross_entropy` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import BadConfig, DtypeError, ShapeError
from .numerics import accumulation_dtype, first_derivatives_only

ELEMENTS = 2**20  # logits held at a time: 4 MB in float32, about what fits the cache; more for a large vocabulary
FEWEST_ROWS = 512  # fewer rows are bound by reading the weight: vocabulary 50,257, width 384, 3,072 rows: 4.4 s by 32 rows, 3.3 s by 512


def smoothed_cross_entropy(
    features_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, target_T: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of all T rows, and the number of rows whose largest logit is the target's.

    Remove padding before the call: every row counts. Sums and gradients are in float32 or wider. The gradient may be taken once; double
    backward is an error. Under autocast the inputs are cast as those of `F.linear`.

    Args:
        features_TD: features of the rows.
        weight_ND: matrix of the output projection.
        bias_N: bias of the output projection; None: none.
        target_T: target id of each row.
        smoothing: label smoothing, the probability spread uniformly over all N ids.

    Shape: features_TD, weight_ND, bias_N, target_T → two scalars.
    """
    device = features_TD.device.type
    if torch.is_autocast_enabled(device) and features_TD.dtype != torch.float64:
        short = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            bias_N = None if bias_N is None else bias_N.to(short)
            return smoothed_cross_entropy(features_TD.to(short), weight_ND.to(short), bias_N, target_T, smoothing)
    _check(features_TD, weight_ND, bias_N, target_T, smoothing)
    total, right = _Fused.apply(features_TD, weight_ND, bias_N, target_T, smoothing, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return total, right


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, target_T: Tensor, smoothing: float, recording: bool
    ) -> tuple[Tensor, Tensor]:
        (T, D), N = features_TD.shape, len(weight_ND)
        dtype = accumulation_dtype(features_TD)
        # grad mode is off inside a Function, so `recording` comes from outside
        wants_features, wants_weight, wants_bias = (recording and wanted for wanted in ctx.needs_input_grad[:3])
        grad_features_TD = torch.empty_like(features_TD) if wants_features else None
        grad_weight_ND = torch.zeros(N, D, dtype=dtype, device=weight_ND.device) if wants_weight else None
        grad_bias_N = torch.zeros(N, dtype=dtype, device=weight_ND.device) if wants_bias else None
        total = torch.zeros((), dtype=dtype, device=features_TD.device)
        right = torch.zeros((), dtype=torch.long, device=features_TD.device)

        chunk = min(max(FEWEST_ROWS, ELEMENTS // N), T)
        # rows start at whole cache lines: with a vocabulary of 50,257 the matmul takes 79 ms instead of 99 (128 rows, one AVX2 thread)
        buffer_CN = torch.empty(chunk, -(-N // 16) * 16, dtype=features_TD.dtype, device=features_TD.device)[:, :N]
        for rows in range(0, T, max(1, chunk)):
            x_CD, target_C1 = features_TD[rows : rows + chunk], target_T[rows : rows + chunk, None]
            z_CN = torch.mm(x_CD, weight_ND.T, out=buffer_CN[: len(x_CD)])
            z_CN = (z_CN if bias_N is None else z_CN.add_(bias_N)).to(dtype)
            top_C1, at_target_C1 = z_CN.amax(1, keepdim=True), z_CN.gather(1, target_C1)
            right += (at_target_C1 == top_C1).sum()
            e_CN = z_CN.sub_(top_C1).exp_()
            sum_C1 = e_CN.sum(1, keepdim=True)
            total += (top_C1 + sum_C1.log() - (1 - smoothing) * at_target_C1).sum()
            if not (wants_features or wants_weight or wants_bias):
                continue
            grad_CN = e_CN.div_(sum_C1).scatter_add_(1, target_C1, torch.full_like(top_C1, smoothing - 1))
            if grad_features_TD is not None:
                grad_features_TD[rows : rows + chunk] = grad_CN.to(weight_ND.dtype) @ weight_ND
            if grad_weight_ND is not None:
                grad_weight_ND.addmm_(grad_CN.T, x_CD.to(dtype))
            if grad_bias_N is not None:
                grad_bias_N += grad_CN.sum(0)

        if smoothing:  # the same for all classes, so it needs no logits: Σ_n z_n = x · Σ_n W_n + Σ_n b_n
            x_D, weight_D = features_TD.sum(0, dtype=dtype), weight_ND.sum(0, dtype=dtype)
            total -= smoothing / N * (x_D @ weight_D + (0 if bias_N is None else T * bias_N.sum(dtype=dtype)))
            if grad_features_TD is not None:
                grad_features_TD -= (smoothing / N * weight_D).to(features_TD.dtype)
            if grad_weight_ND is not None:
                grad_weight_ND -= smoothing / N * x_D
            if grad_bias_N is not None:
                grad_bias_N -= smoothing / N * T

        ctx.save_for_backward(grad_features_TD, grad_weight_ND, grad_bias_N)
        ctx.dtypes = features_TD.dtype, weight_ND.dtype, None if bias_N is None else bias_N.dtype
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad_total: Tensor, grad_right: None) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        # in place, because that of the weight is large: a second backward pass raises
        return *(None if grad is None else grad.mul_(grad_total).to(dtype) for grad, dtype in pairs), None, None, None


def _check(features_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, target_T: Tensor, smoothing: float) -> None:
    shapes = tuple(features_TD.shape), tuple(weight_ND.shape), None if bias_N is None else tuple(bias_N.shape), tuple(target_T.shape)
    fits = features_TD.ndim == weight_ND.ndim == 2 and features_TD.shape[1] == weight_ND.shape[1] and len(weight_ND) > 0
    fits = fits and (bias_N is None or bias_N.shape == weight_ND.shape[:1]) and target_T.shape == features_TD.shape[:1]
    if not fits:
        raise ShapeError(
            f"features, weight, bias, target have shapes {shapes}; expected (T, D), (N, D), (N) or None, (T): flatten batch and length first"
        )
    if target_T.dtype != torch.long or features_TD.dtype != weight_ND.dtype or not features_TD.is_floating_point():
        raise DtypeError(
            f"features, weight, target are {features_TD.dtype}, {weight_ND.dtype}, {target_T.dtype}; "
            "expected one floating-point dtype for features and weight, and torch.long for target"
        )
    if not 0 <= smoothing < 1:
        raise BadConfig(f"smoothing is {smoothing}; expected 0 ≤ smoothing < 1, usually 0.1")

"""Exact attention of many small problems, each with hidden pairs of its own: clusters, blocks, chunks.

A few problems at a time, so that their scores fit the cache, and again in the backward pass: nothing of the size of all scores is stored.
Pairs are hidden by subtracting a large number that plain arithmetic can make: comparisons take five times as long on a CPU, `where` and
`masked_fill` forty times. Exponentials are powers of two: they cost half as much, and a tenth where scores are hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .numerics import LOG2E, accumulation_dtype, first_derivatives_only, no_autocast
from .scratch import Scratch

SCORES_AT_ONCE = 2**19  # scores processed at a time: 2 MiB in float32; fewer cost more calls, more do not fit the cache
HIDE = 1e30  # subtracted from the scores of hidden pairs: finite, because inf − inf is NaN

HiddenPairs = Callable[
    [slice], Tensor
]  # of a slice of problems: 0 where a pair is visible, −1 or less where it is hidden, broadcast to (n, C, S)


@no_autocast
def attend_many_small(
    q_NCK: Tensor, k_NSK: Tensor, v_NSV: Tensor, hidden: HiddenPairs | None = None, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The attention outputs out_NCV, zeros where a query attends to nothing, and whether it attends to anything, some_NC.

    Args:
        q_NCK: C queries of each of N problems.
        k_NSK: S keys of each problem.
        v_NSV: their values.
        hidden: function of a slice of problems: 0 where a pair is visible, −1 or less where it is hidden; None: all are visible.
        scale: factor of the dot products.

    Shape: q_NCK, k_NSK, v_NSV → out_NCV, some_NC.
    """
    return ManySmall.apply(hidden, scale, q_NCK, k_NSK, v_NSV)  # type: ignore[no-untyped-call]


class ManySmall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: HiddenPairs | None, scale: float, q_NCK: Tensor, k_NSK: Tensor, v_NSV: Tensor) -> tuple[Tensor, Tensor]:
        (N, C, _), V = q_NCK.shape, v_NSV.shape[-1]
        out_NCV, lse_NC1 = (q_NCK.new_empty(N, C, size, dtype=accumulation_dtype(q_NCK)) for size in (V, 1))
        ctx.hidden, ctx.scale, scratch = hidden, scale, Scratch(lse_NC1)
        for part in _parts(q_NCK, k_NSK):
            q, k, v = (x[part].to(lse_NC1.dtype) for x in (q_NCK, k_NSK, v_NSV))
            e_nCS, top_nC1 = _scores(q, k, hidden, part, scale, scratch), lse_NC1[part]
            torch.amax(e_nCS, -1, keepdim=True, out=top_nC1)
            total_nC1 = e_nCS.sub_(top_nC1).exp2_().sum(-1, keepdim=True)
            alone_nC1 = top_nC1 < -HIDE / 2
            torch.bmm(e_nCS, v, out=out_NCV[part]).div_(total_nC1.masked_fill(alone_nC1, torch.inf))
            top_nC1.add_(total_nC1.log2_()).masked_fill_(alone_nC1, HIDE)  # all weights are zero in the backward pass
        some_NC = lse_NC1.squeeze(-1) != HIDE
        ctx.save_for_backward(q_NCK, k_NSK, v_NSV, out_NCV, lse_NC1)
        ctx.mark_non_differentiable(some_NC)
        return out_NCV.to(v_NSV.dtype), some_NC

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, do_NCV: Tensor, _: None) -> tuple[Tensor | None, ...]:
        q_NCK, k_NSK, v_NSV, out_NCV, lse_NC1 = ctx.saved_tensors
        dq_NCK, dk_NSK, dv_NSV = (torch.empty_like(x, dtype=lse_NC1.dtype) for x in (q_NCK, k_NSK, v_NSV))
        scratch = Scratch(lse_NC1)
        for part in _parts(q_NCK, k_NSK):
            q, k, v, do, out = (x[part].to(lse_NC1.dtype) for x in (q_NCK, k_NSK, v_NSV, do_NCV, out_NCV))
            p_nCS = _scores(q, k, ctx.hidden, part, ctx.scale, scratch).sub_(lse_NC1[part]).exp2_()
            delta_nC1 = (do * out).sum(-1, keepdim=True)
            ds_nCS = torch.baddbmm(delta_nC1, do, v.mT, beta=-1, out=scratch("ds", *p_nCS.shape)).mul_(p_nCS)
            torch.bmm(p_nCS.mT, do, out=dv_NSV[part])
            torch.bmm(ds_nCS, k, out=dq_NCK[part]).mul_(ctx.scale)
            torch.bmm(ds_nCS.mT, q, out=dk_NSK[part]).mul_(ctx.scale)
        return None, None, dq_NCK.to(q_NCK.dtype), dk_NSK.to(k_NSK.dtype), dv_NSV.to(v_NSV.dtype)


def _scores(q: Tensor, k: Tensor, hidden: HiddenPairs | None, part: slice, scale: float, scratch: Scratch) -> Tensor:
    """Times log2 e."""
    s_nCS = scratch("scores", len(q), q.shape[1], k.shape[1])
    if hidden is None:
        return s_nCS.baddbmm_(q, k.mT, beta=0, alpha=scale * LOG2E)
    return s_nCS.copy_(hidden(part)).baddbmm_(q, k.mT, beta=HIDE, alpha=scale * LOG2E)


def _parts(q_NCK: Tensor, k_NSK: Tensor) -> list[slice]:
    N, size = len(q_NCK), max(1, SCORES_AT_ONCE // max(1, q_NCK.shape[1] * k_NSK.shape[1]))
    return [slice(n, min(n + size, N)) for n in range(0, N, size)]

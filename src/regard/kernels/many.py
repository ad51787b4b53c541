"""Exact attention of many small problems, each with pairs of its own that do not count: clusters, blocks, chunks.

Some problems at a time, whose scores fit the cache, and again on the way back: nothing the size of all scores is kept. Pairs are
hidden by a number that is taken from their score and that arithmetic can make: comparisons take five times as long on a CPU, `where` and
`masked_fill` forty times. Exponentials are powers of two: they cost half as much, and where scores are hidden a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._autocast import uncast
from ._room import Room

BUDGET = 2**19  # scores worked on at a time: 2 MiB in float32; fewer cost more calls, more leave the cache
FAR = 1e30  # what is taken from the scores of pairs that do not count: finite, so that nothing minus nothing is not NaN
LOG2E = math.log2(math.e)

Hidden = Callable[[slice], Tensor]  # of some problems: 0 where a pair counts, −1 or less elsewhere, (n, C, S) or broadcast to it


@uncast
def many(q_NCK: Tensor, k_NSK: Tensor, v_NSV: Tensor, hidden: Hidden | None = None, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The averages out_NCV, zeros where a query sees nothing, and whether it sees anything, some_NC."""
    return Many.apply(hidden, scale, q_NCK, k_NSK, v_NSV)  # type: ignore[no-any-return, no-untyped-call]


class Many(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Hidden | None, scale: float, q_NCK: Tensor, k_NSK: Tensor, v_NSV: Tensor) -> tuple[Tensor, Tensor]:
        (N, C, _), V = q_NCK.shape, v_NSV.shape[-1]
        out_NCV, lse_NC1 = (q_NCK.new_empty(N, C, size, dtype=_precise(q_NCK)) for size in (V, 1))
        ctx.hidden, ctx.scale, room = hidden, scale, Room(lse_NC1)
        for part in _parts(q_NCK, k_NSK):
            q, k, v = (x[part].to(lse_NC1.dtype) for x in (q_NCK, k_NSK, v_NSV))
            e_nCS, top_nC1 = _scores(q, k, hidden, part, scale, room), lse_NC1[part]
            torch.amax(e_nCS, -1, keepdim=True, out=top_nC1)
            total_nC1 = e_nCS.sub_(top_nC1).exp2_().sum(-1, keepdim=True)
            alone_nC1 = top_nC1 < -FAR / 2
            torch.bmm(e_nCS, v, out=out_NCV[part]).div_(total_nC1.masked_fill(alone_nC1, torch.inf))
            top_nC1.add_(total_nC1.log2_()).masked_fill_(alone_nC1, FAR)  # no weight at all on the way back
        some_NC = lse_NC1.squeeze(-1) != FAR
        ctx.save_for_backward(q_NCK, k_NSK, v_NSV, out_NCV, lse_NC1)
        ctx.mark_non_differentiable(some_NC)
        return out_NCV.to(v_NSV.dtype), some_NC

    @staticmethod
    @once_differentiable
    @uncast
    def backward(ctx: Any, do_NCV: Tensor, _: None) -> tuple[Tensor | None, ...]:
        q_NCK, k_NSK, v_NSV, out_NCV, lse_NC1 = ctx.saved_tensors
        dq_NCK, dk_NSK, dv_NSV = (torch.empty_like(x, dtype=lse_NC1.dtype) for x in (q_NCK, k_NSK, v_NSV))
        room = Room(lse_NC1)
        for part in _parts(q_NCK, k_NSK):
            q, k, v, do, out = (x[part].to(lse_NC1.dtype) for x in (q_NCK, k_NSK, v_NSV, do_NCV, out_NCV))
            p_nCS = _scores(q, k, ctx.hidden, part, ctx.scale, room).sub_(lse_NC1[part]).exp2_()
            delta_nC1 = (do * out).sum(-1, keepdim=True)
            ds_nCS = torch.baddbmm(delta_nC1, do, v.mT, beta=-1, out=room("ds", *p_nCS.shape)).mul_(p_nCS)
            torch.bmm(p_nCS.mT, do, out=dv_NSV[part])
            torch.bmm(ds_nCS, k, out=dq_NCK[part]).mul_(ctx.scale)
            torch.bmm(ds_nCS.mT, q, out=dk_NSK[part]).mul_(ctx.scale)
        return None, None, dq_NCK.to(q_NCK.dtype), dk_NSK.to(k_NSK.dtype), dv_NSV.to(v_NSV.dtype)


def _scores(q: Tensor, k: Tensor, hidden: Hidden | None, part: slice, scale: float, room: Room) -> Tensor:
    """In powers of two."""
    s_nCS = room("scores", len(q), q.shape[1], k.shape[1])
    if hidden is None:
        return s_nCS.baddbmm_(q, k.mT, beta=0, alpha=scale * LOG2E)
    return s_nCS.copy_(hidden(part)).baddbmm_(q, k.mT, beta=FAR, alpha=scale * LOG2E)


def _parts(q_NCK: Tensor, k_NSK: Tensor) -> list[slice]:
    N, size = len(q_NCK), max(1, BUDGET // max(1, q_NCK.shape[1] * k_NSK.shape[1]))
    return [slice(n, min(n + size, N)) for n in range(0, N, size)]


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)

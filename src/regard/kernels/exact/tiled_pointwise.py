"""Attention whose weights are a function of each score alone, without a normaliser, tile by tile: sigmoid attention, ReLU attention, …

    s_ij = scale · q_i·k_j + bias_ij + row_bias_i        w_ij = activation(s_ij) where allowed, else 0        out_i = Σ_j w_ij v_j

    backward:  dv = wᵀ d_out        ds = (d_out vᵀ) ∘ activation'(s)        dq = scale · ds k        dk = scale · dsᵀ q

The plan, the stacks and the bias are those of softmax attention. Without a normaliser there is no log-sum-exp: results over other keys of
the same row are added, and the backward pass needs nothing of the forward pass but its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...patterns import Pattern
from ..numerics import accumulation_dtype, first_derivatives_only, no_autocast
from .bias import Bias, Matrix
from .plan import is_small, make_plan, whole_plan
from .stack import Work, allocate, group_part, group_stacks, to_head_major, wants_gradient


@dataclass(frozen=True, slots=True)
class ScoreActivation:
    """A function of single scores, w = value(s), and its derivative dw/ds = derivative(s, w).

    `value` may overwrite the scores if `derivative` does not read them; `derivative` may overwrite both its arguments. `vanishes` says
    that value and derivative are 0 at s = −inf: excluded pairs then get that score, and need not be multiplied by zero afterwards.

    Args:
        value: scores → weights.
        derivative: (scores, weights) → dw/ds.
        vanishes: value and derivative are 0 at s = −inf.
    """

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor, Tensor], Tensor]
    vanishes: bool = False


SIGMOID = ScoreActivation(torch.Tensor.sigmoid_, lambda s, w: torch.addcmul(w, w, w, value=-1), vanishes=True)
RELU = ScoreActivation(torch.Tensor.relu_, lambda s, w: w.sign_(), vanishes=True)
SQUARED_RELU = ScoreActivation(lambda s: s.relu().square(), lambda s, w: s.relu_().mul_(2), vanishes=True)


def attend_pointwise(
    q_BLHK: Tensor,
    k_BMHK: Tensor,
    v_BMHV: Tensor,
    pattern: Pattern,
    activation: ScoreActivation,
    *,
    scale: float | None = None,
    bias: Tensor | Bias | None = None,
    row_bias: Tensor | None = None,
) -> Tensor:
    """The weighted sum out_BLHV of values, with weights activation(scale · q·k + bias + row_bias) on allowed pairs.

    Both biases have gradients. A row that may attend to nothing gives zeros, and so does a pair whose bias is −inf.

    Args:
        q_BLHK: queries.
        k_BMHK: keys, perhaps with fewer heads, as in `attend`.
        v_BMHV: values.
        pattern: pairs that are allowed.
        activation: function of single scores.
        scale: factor of the dot products; 1/√K if not given.
        bias: a tensor that broadcasts to (B, H, L, M), or a `Bias`, added to scores; None: none.
        row_bias: one number per query, such as sigmoid attention's −log of the number of keys, which broadcasts to (B, H, L); None: none.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV.
    """
    B, L, H, K = q_BLHK.shape
    M, G = k_BMHK.shape[1:3]
    if isinstance(bias, Tensor):
        bias = Matrix(bias, L, M)
    if row_bias is not None:
        row_bias = row_bias.to(accumulation_dtype(q_BLHK)).expand(B, H, L).transpose(1, 2)
    plan = whole_plan(pattern, L, M) if is_small(L, M) else make_plan(pattern, L, M, H // G if G else 1)
    work = PointwiseWork(plan, bias, wants_gradient(bias), activation, K**-0.5 if scale is None else scale)
    tensors = bias.tensors if bias else ()
    return TiledPointwise.apply(work, q_BLHK, k_BMHK, v_BMHV, row_bias, *tensors)  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class PointwiseWork(Work):
    """State that the forward and the backward pass share."""

    activation: ScoreActivation
    scale: float

    def weights(self, q: Tensor, k: Tensor, row: Tensor | None, added: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Scores and weights of a stack, and what to multiply gradients by: 0 for excluded pairs, else 1; None if that is not needed."""
        s, allowed = torch.matmul(q * self.scale, k.transpose(-1, -2)), None
        if row is not None:
            s.add_(row.unsqueeze(-1))
        if added is not None and self.activation.vanishes:
            s.add_(added)
        elif added is not None:
            excluded = added == -torch.inf
            allowed = (~excluded).to(s.dtype)
            if self.bias is not None:
                s.add_(added.masked_fill(excluded, 0))
            s.mul_(allowed)  # a score of 0 in place of one that may be too large for the activation
        w = self.activation.value(s)
        return s, w if allowed is None else w.mul_(allowed), allowed


class TiledPointwise(torch.autograd.Function):
    """Weights are made in both passes, one stack of tiles at a time, and never kept."""

    @staticmethod
    @no_autocast
    def forward(ctx: Any, work: PointwiseWork, q: Tensor, k: Tensor, v: Tensor, row: Tensor | None, *tensors: Tensor) -> Tensor:
        (B, L, H, _), precise = q.shape, accumulation_dtype(q)
        out = allocate(torch.empty if work.plan.covered else torch.zeros, (B, L, H, v.shape[-1]), precise, q.device, head_major=True)
        q, k, v = (to_head_major(x) for x in (q, k, v))
        for group in work.plan.groups:
            q_, k_, v_, out_ = (group_part(x, group, H) for x in (q, k, v, out))
            row_ = None if row is None else group_part(row, group, H)
            b, _, heads = q_.shape[:3]
            for stack in group_stacks(group, q_, k_):
                qt, kt, vt = stack.take_rows(q_), stack.take_columns(k_, heads), stack.take_columns(v_, heads)
                added = work.added(group, stack, out, b, tensors)
                _, w, _ = work.weights(qt.to(precise), kt.to(precise), None if row_ is None else stack.take_rows(row_), added)
                (stack.put_rows if work.plan.covered else stack.add_rows)(out_, torch.matmul(w, vt.to(precise)))
        ctx.work = work
        ctx.save_for_backward(q, k, v, row, *tensors)
        return out.to(q.dtype)

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        work: PointwiseWork = ctx.work
        q, k, v, row, *tensors = ctx.saved_tensors
        H, precise = q.shape[2], accumulation_dtype(q)
        make, device = torch.empty if work.plan.covered else torch.zeros, q.device
        dk, dv = (allocate(torch.zeros, x.shape, precise, device, head_major=True) for x in (k, v))
        dq = allocate(make, q.shape, precise, device, head_major=True)
        d_row = make(q.shape[:3], dtype=precise, device=device) if ctx.needs_input_grad[4] else None
        d_tensors = [torch.zeros_like(t, dtype=precise) for t in tensors] if work.learned else []
        d_out = to_head_major(d_out)
        for group in work.plan.groups:
            q_, k_, v_, g_, dq_, dk_, dv_ = (group_part(x, group, H) for x in (q, k, v, d_out, dq, dk, dv))
            row_, d_row_ = (None if x is None else group_part(x, group, H) for x in (row, d_row))
            b, _, heads = q_.shape[:3]
            for stack in group_stacks(group, q_, k_):
                qt, gt = (stack.take_rows(x).to(precise) for x in (q_, g_))
                kt, vt = (stack.take_columns(x, heads).to(precise) for x in (k_, v_))
                added = work.added(group, stack, dq, b, tuple(tensors))
                s, w, allowed = work.weights(qt, kt, None if row_ is None else stack.take_rows(row_), added)
                stack.add_columns(dv_, torch.matmul(w.transpose(-1, -2), gt))
                ds = torch.matmul(gt, vt.transpose(-1, -2)).mul_(work.activation.derivative(s, w))
                if allowed is not None:
                    ds.mul_(allowed)
                if work.learned:
                    work.add_bias_gradients(group, stack, ds, tensors, d_tensors)
                put = stack.put_rows if work.plan.covered else stack.add_rows
                if d_row_ is not None:
                    put(d_row_, ds.sum(-1))
                put(dq_, torch.matmul(ds, kt).mul_(work.scale))
                stack.add_columns(dk_, torch.matmul(ds.transpose(-1, -2), qt).mul_(work.scale))
        biases = [t.to(like.dtype) for t, like in zip(d_tensors, tensors, strict=True)] if work.learned else [None] * len(tensors)
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_row, *biases

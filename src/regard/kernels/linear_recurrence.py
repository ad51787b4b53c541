"""Sums of outer products along a sequence, with decay: the core of every attention that is also a recurrent network.

    S_t = γ_t ∘ S_{t−1} + k_t v_tᵀ        o_t = S_tᵀ q_t        γ_t = exp(log_decay_t), 1 unless given

Decay is one number per head, or one per feature (a row of S). `scan` works in chunks: between chunks through the state, inside a
chunk as a masked matmul (q kᵀ ∘ D) v with D_ij = γ_{j+1} ⋯ γ_i. Time O(L·(C + F)·V). The backward pass needs only the L/C states between
chunks: memory O(L·F·V/C). `scan_definition` is the loop over time.

Cumulative decays are never divided: they underflow after a few hundred steps. D_ij is the exponential of a difference of cumulative
logarithms, which is never positive where j ≤ i; with decay per feature it is the product of two (`chunks.decay_between`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .chunks import (
    CHUNK,
    cumulate,
    decay_across,
    decay_between,
    decay_from_start,
    decay_to_end,
    from_chunks,
    products,
    products_backward,
    scaled,
    to_chunks,
)
from .numerics import accumulation_dtype, first_derivatives_only, no_autocast


@no_autocast
def scan(
    q_BLHF: Tensor, k_BLHF: Tensor, v_BLHV: Tensor, log_decay: Tensor | None = None, state_BHFV: Tensor | None = None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """out_BLHV and the last state_BHFV, in float32 or wider.

    Args:
        q_BLHF: features of queries.
        k_BLHF: features of keys.
        v_BLHV: values.
        log_decay: logarithm of the decay before each token, finite and ≤ 0, (B, L, H), or (B, L, H, F) per feature; None: no decay.
        state_BHFV: state before the first token; None: zeros.
        chunk: tokens per chunk.

    Shape: q_BLHF, k_BLHF, v_BLHV → out_BLHV, state_BHFV.
    """
    (B, L, H, F), V = q_BLHF.shape, v_BLHV.shape[-1]
    if L <= 1:
        return scan_definition(q_BLHF, k_BLHF, v_BLHV, log_decay, state_BHFV)
    if state_BHFV is None:
        state_BHFV = q_BLHF.new_zeros(B, H, F, V, dtype=accumulation_dtype(q_BLHF))
    size = min(chunk, L)
    if log_decay is not None and log_decay.dim() == 4:
        size = 1 << (size - 1).bit_length()  # a power of two can be halved down to one
    elif log_decay is not None:
        log_decay = log_decay.unsqueeze(-1)
    return Scan.apply(q_BLHF, k_BLHF, v_BLHV, log_decay, state_BHFV, size)  # type: ignore[no-untyped-call]


def scan_definition(
    q_BLHF: Tensor, k_BLHF: Tensor, v_BLHV: Tensor, log_decay: Tensor | None = None, state_BHFV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `scan` one step at a time: the definition.

    Args:
        q_BLHF: features of queries.
        k_BLHF: features of keys.
        v_BLHV: values.
        log_decay: logarithm of the decay before each token, (B, L, H), or (B, L, H, F) per feature; None: no decay.
        state_BHFV: state before the first token; None: zeros.

    Shape: q_BLHF, k_BLHF, v_BLHV → out_BLHV, state_BHFV.
    """
    (B, L, H, F), precise = q_BLHF.shape, accumulation_dtype(q_BLHF)
    state = q_BLHF.new_zeros(B, H, F, v_BLHV.shape[-1], dtype=precise) if state_BHFV is None else state_BHFV
    outs = []
    for t in range(L):
        if log_decay is not None:
            g = log_decay[:, t].to(precise).exp()
            state = state * (g[..., None, None] if g.dim() == 2 else g[..., None])
        state = state + k_BLHF[:, t].to(precise).unsqueeze(-1) * v_BLHV[:, t].to(precise).unsqueeze(-2)
        outs.append(torch.matmul(q_BLHF[:, t].to(precise).unsqueeze(-2), state).squeeze(-2))
    return (torch.stack(outs, 1).to(v_BLHV.dtype) if outs else v_BLHV), state


class Scan(torch.autograd.Function):
    """Everything in chunks (N, C, size), N = chunks · B · H, the chunks outermost: the states of all sequences advance together."""

    @staticmethod
    def forward(
        ctx: Any, q_BLHF: Tensor, k_BLHF: Tensor, v_BLHV: Tensor, decay_BLHF: Tensor | None, state_BHFV: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (to_chunks(x, size) for x in (q_BLHF, k_BLHF, v_BLHV))
        run = cumulate(decay_BLHF, size)
        first = state_BHFV.flatten(0, 1)
        states = first.new_empty(-(-q_BLHF.shape[1] // size) + 1, *first.shape)  # before each chunk, and at the end
        states[0] = first
        torch.bmm(scaled(k, decay_to_end(run)).mT, v, out=states[1:].flatten(0, 1))
        over = decay_across(run, states)
        for n in range(1, len(states)):
            states[n] += states[n - 1] if over is None else states[n - 1] * over[n - 1]
        out = torch.bmm(products(q, k, decay_between(run)), v).baddbmm_(scaled(q, decay_from_start(run)), states[:-1].flatten(0, 1))
        ctx.size = size
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BLHF, k_BLHF, v_BLHV, decay_BLHF, states)
        return from_chunks(out, v_BLHV), states[-1].view(state_BHFV.shape).clone()

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_out: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        q_BLHF, k_BLHF, v_BLHV, decay_BLHF, states = ctx.saved_tensors
        d_out = torch.zeros_like(v_BLHV) if d_out is None else d_out
        q, k, v, do = (to_chunks(x, ctx.size) for x in (q_BLHF, k_BLHF, v_BLHV, d_out))
        run = cumulate(decay_BLHF, ctx.size)
        enter, leave = decay_from_start(run), decay_to_end(run)
        dstates = torch.empty_like(states)
        dstates[-1] = 0 if d_last is None else d_last.flatten(0, 1)
        torch.bmm(scaled(q, enter).mT, do, out=dstates[:-1].flatten(0, 1))
        over = decay_across(run, states)
        for n in reversed(range(len(states) - 1)):
            dstates[n] += dstates[n + 1] if over is None else dstates[n + 1] * over[n]
        before, after = states[:-1].flatten(0, 1), dstates[1:].flatten(0, 1)
        between = decay_between(run)
        dq, dk = products_backward(torch.bmm(do, v.mT), q, k, between)
        dq += scaled(torch.bmm(do, before.mT), enter)
        dk += scaled(torch.bmm(v, after.mT), leave)
        dv = torch.bmm(products(q, k, between).mT, do).baddbmm_(scaled(k, leave), after)
        d_decay = None
        if decay_BLHF is not None and ctx.needs_input_grad[3]:
            # a cumulative logarithm appears as +run_i with every q_i, as −run_j with every k_j, and the last one with the state
            d_run = q * dq - k * dk
            d_run[:, -1] += (states[1:].flatten(0, 1) * after).sum(-1)
            d_run = d_run.sum(-1, keepdim=True) if decay_BLHF.shape[-1] == 1 else d_run
            d_decay = from_chunks(d_run.flip(1).cumsum(1).flip(1), decay_BLHF)
        d_state = dstates[0].view(q_BLHF.shape[0], q_BLHF.shape[2], *dstates.shape[2:])
        return from_chunks(dq, q_BLHF), from_chunks(dk, k_BLHF), from_chunks(dv, v_BLHV), d_decay, d_state, None

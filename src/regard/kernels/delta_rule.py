"""The delta rule along a sequence: what the state returns for a key is moved towards the value, instead of adding to it.

    S_t = γ_t ∘ S_{t−1} + k_t u_tᵀ        u_t = β_t (v_t − (γ_t ∘ S_{t−1})ᵀ k_t)        o_t = S_tᵀ q_t

β_t is the step size (0: nothing is written; 1: with a key of norm one, the old value is replaced), γ_t = exp(log_decay_t) the decay,
1 by default, one number per head or one per feature (a row of S). Keys of norm at most one and 0 ≤ β ≤ 2 keep S bounded; that is up to
the caller.

`delta_scan` works in chunks of C. Inside a chunk that starts from S the corrections u solve a triangular system, with D_ij = γ_{j+1} ⋯ γ_i,

    (I + A) U = β (V − γ_1⋯γ_i K S)        A_ij = β_i Σ_f k_if D_ijf k_jf  where j < i,

and (I + A)⁻¹ is computed for all chunks at once. The loop over chunks then takes two matmuls per chunk, and the outputs are those of
`scan` with U in place of V. Time O(L·C·(C + F + V) + L·F·V). The backward pass needs only the states between chunks: memory
O(L·F·V/C). `delta_scan_definition` is the loop over time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .chunks import (
    CHUNK,
    Halves,
    cumulate,
    decay_across,
    decay_between,
    decay_from_start,
    decay_to_end,
    from_chunks,
    on_diagonal,
    products,
    products_backward,
    scaled,
    to_chunks,
)
from .numerics import accumulation_dtype, first_derivatives_only, no_autocast


@no_autocast
def delta_scan(
    q_BLHF: Tensor,
    k_BLHF: Tensor,
    v_BLHV: Tensor,
    beta_BLH: Tensor,
    log_decay: Tensor | None = None,
    state_BHFV: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """out_BLHV and the last state_BHFV, in float32 or wider.

    Args:
        q_BLHF: features of queries.
        k_BLHF: features of keys.
        v_BLHV: values.
        beta_BLH: step size of each token, from 0 to 1.
        log_decay: logarithm of the decay before each token, finite and ≤ 0, (B, L, H), or (B, L, H, F) per feature; None: no decay.
        state_BHFV: state before the first token; None: zeros.
        chunk: tokens per chunk.

    Shape: q_BLHF, k_BLHF, v_BLHV → out_BLHV, state_BHFV.
    """
    (B, L, H, F), V = q_BLHF.shape, v_BLHV.shape[-1]
    if L <= 1:
        return delta_scan_definition(q_BLHF, k_BLHF, v_BLHV, beta_BLH, log_decay, state_BHFV)
    if state_BHFV is None:
        state_BHFV = q_BLHF.new_zeros(B, H, F, V, dtype=accumulation_dtype(q_BLHF))
    size = 1 << (min(chunk, L) - 1).bit_length()  # a power of two can be halved down to one
    if log_decay is not None and log_decay.dim() == 3:
        log_decay = log_decay.unsqueeze(-1)
    return DeltaScan.apply(q_BLHF, k_BLHF, v_BLHV, beta_BLH.unsqueeze(-1), log_decay, state_BHFV, size)  # type: ignore[no-untyped-call]


def delta_scan_definition(
    q_BLHF: Tensor, k_BLHF: Tensor, v_BLHV: Tensor, beta_BLH: Tensor, log_decay: Tensor | None = None, state_BHFV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `delta_scan` one step at a time: the definition.

    Args:
        q_BLHF: features of queries.
        k_BLHF: features of keys.
        v_BLHV: values.
        beta_BLH: step size of each token, from 0 to 1.
        log_decay: logarithm of the decay before each token, finite and ≤ 0, (B, L, H), or (B, L, H, F) per feature; None: no decay.
        state_BHFV: state before the first token; None: zeros.

    Shape: q_BLHF, k_BLHF, v_BLHV → out_BLHV, state_BHFV.
    """
    (B, L, H, F), precise = q_BLHF.shape, accumulation_dtype(q_BLHF)
    state = q_BLHF.new_zeros(B, H, F, v_BLHV.shape[-1], dtype=precise) if state_BHFV is None else state_BHFV
    outs = []
    for t in range(L):
        q, k, v, beta = (x[:, t].to(precise) for x in (q_BLHF, k_BLHF, v_BLHV, beta_BLH))
        if log_decay is not None:
            g = log_decay[:, t].to(precise).exp()
            state = state * (g[..., None, None] if g.dim() == 2 else g[..., None])
        answer = torch.matmul(k.unsqueeze(-2), state).squeeze(-2)
        state = state + k.unsqueeze(-1) * (beta.unsqueeze(-1) * (v - answer)).unsqueeze(-2)
        outs.append(torch.matmul(q.unsqueeze(-2), state).squeeze(-2))
    return (torch.stack(outs, 1).to(v_BLHV.dtype) if outs else v_BLHV), state


class DeltaScan(torch.autograd.Function):
    """Delta rule in chunks (N, C, size), N = chunks · B · H, the chunks outermost, as in `scan`."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BLHF: Tensor,
        k_BLHF: Tensor,
        v_BLHV: Tensor,
        beta_BLH1: Tensor,
        decay_BLHF: Tensor | None,
        state_BHFV: Tensor,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        q, k, v, beta = (to_chunks(x, size) for x in (q_BLHF, k_BLHF, v_BLHV, beta_BLH1))
        run = cumulate(decay_BLHF, size)
        between = decay_between(run)
        enter = decay_from_start(run)
        first = state_BHFV.flatten(0, 1)
        states = first.new_empty(-(-q_BLHF.shape[1] // size) + 1, *first.shape)  # before each chunk, and at the end
        states[0] = first
        inverse = _inverse(beta * _earlier(k, between))
        erase, u = torch.bmm(inverse, beta * scaled(k, enter)), torch.bmm(inverse, beta * v)
        chunks = [x.unflatten(0, (len(states) - 1, -1)) for x in (erase, u, scaled(k, decay_to_end(run)))]
        over = decay_across(run, states)
        for n, (erase_n, u_n, k_n) in enumerate(zip(*chunks, strict=True)):
            u_n.baddbmm_(erase_n, states[n], alpha=-1)
            torch.baddbmm(states[n] if over is None else states[n] * over[n], k_n.mT, u_n, out=states[n + 1])
        out = torch.bmm(products(q, k, between), u).baddbmm_(scaled(q, enter), states[:-1].flatten(0, 1))
        ctx.size = size
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BLHF, k_BLHF, v_BLHV, beta_BLH1, decay_BLHF, states)
        return from_chunks(out, v_BLHV), states[-1].view(state_BHFV.shape).clone()

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_out: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        q_BLHF, k_BLHF, v_BLHV, beta_BLH1, decay_BLHF, states = ctx.saved_tensors
        d_out = torch.zeros_like(v_BLHV) if d_out is None else d_out
        q, k, v, beta, do = (to_chunks(x, ctx.size) for x in (q_BLHF, k_BLHF, v_BLHV, beta_BLH1, d_out))
        run = cumulate(decay_BLHF, ctx.size)
        between = decay_between(run)
        enter, leave, over = decay_from_start(run), decay_to_end(run), decay_across(run, states)
        before = states[:-1].flatten(0, 1)
        # the forward pass again, all chunks at once, now that the states between them are known
        earlier, asked = _earlier(k, between), scaled(k, enter)
        inverse = _inverse(beta * earlier)
        erase, missing = torch.bmm(inverse, beta * asked), torch.baddbmm(v, asked, before, alpha=-1)
        u = torch.bmm(inverse, beta * missing)
        # from the last chunk to the first
        du = torch.bmm(products(q, k, between).mT, do)
        dstates = torch.empty_like(states)
        dstates[-1] = 0 if d_last is None else d_last.flatten(0, 1)
        torch.bmm(scaled(q, enter).mT, do, out=dstates[:-1].flatten(0, 1))
        chunks = [x.unflatten(0, (len(states) - 1, -1)) for x in (erase, du, scaled(k, leave))]
        for n, (erase_n, du_n, k_n) in reversed(list(enumerate(zip(*chunks, strict=True)))):
            du_n.baddbmm_(k_n, dstates[n + 1])
            dstates[n] += dstates[n + 1] if over is None else dstates[n + 1] * over[n]
            dstates[n].baddbmm_(erase_n.mT, du_n, alpha=-1)
        # u = β (v − what keys read) gives v and β; a key reads with the cotangent −dv, as a query does with do
        d_step = torch.bmm(inverse.mT, du)
        d_beta = (d_step * missing.baddbmm_(earlier, u, alpha=-1)).sum(-1, keepdim=True)
        dv = beta * d_step
        dq, dk_by_q = products_backward(torch.bmm(do, u.mT), q, k, between)
        dk_read, dk_by_k = products_backward(torch.bmm(dv, u.mT).tril_(-1).neg_(), k, k, between)
        dq += scaled(torch.bmm(do, before.mT), enter)
        dk_read -= scaled(torch.bmm(dv, before.mT), enter)
        after = dstates[1:].flatten(0, 1)
        dk_written = dk_by_q + dk_by_k + scaled(torch.bmm(u, after.mT), leave)
        d_decay = None
        if decay_BLHF is not None and ctx.needs_input_grad[4]:
            # a cumulative logarithm appears as +run_i where token i reads, as −run_j where j was written, the last one with the state
            d_run = q * dq + k * (dk_read - dk_written)
            d_run[:, -1] += (states[1:].flatten(0, 1) * after).sum(-1)
            d_run = d_run.sum(-1, keepdim=True) if decay_BLHF.shape[-1] == 1 else d_run
            d_decay = from_chunks(d_run.flip(1).cumsum(1).flip(1), decay_BLHF)
        d_state = dstates[0].view(q_BLHF.shape[0], q_BLHF.shape[2], *dstates.shape[2:])
        dq, dk, dv = from_chunks(dq, q_BLHF), from_chunks(dk_read + dk_written, k_BLHF), from_chunks(dv, v_BLHV)
        return dq, dk, dv, from_chunks(d_beta, beta_BLH1), d_decay, d_state, None


def _earlier(k: Tensor, between: Tensor | Halves | None) -> Tensor:
    """Decayed k_i·k_j where j < i."""
    return products(k, k, between).tril_(-1)


def _inverse(lower: Tensor) -> Tensor:
    """(I + lower)⁻¹ of matrices that are zero on and above the diagonal, of a size that is a power of two.

    From blocks of one up to the whole, by [[P, 0], [X, Q]]⁻¹ = [[P⁻¹, 0], [−Q⁻¹ X P⁻¹, Q⁻¹]], in a few batched matmuls: 512 systems of
    64 took 9 ms; `solve_triangular`, which calls LAPACK once per matrix, 35 to 40 (one core, float32).
    """
    inverse = torch.eye(lower.shape[1], dtype=lower.dtype, device=lower.device).repeat(len(lower), 1, 1)
    half = 1
    while half < lower.shape[1]:
        done, given = on_diagonal(inverse, 2 * half), on_diagonal(lower, 2 * half)
        done[..., half:, :half] = -(done[..., half:, half:] @ given[..., half:, :half] @ done[..., :half, :half])
        half *= 2
    return inverse

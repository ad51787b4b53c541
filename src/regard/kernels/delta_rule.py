"""The delta rule along a sequence: what the state returns for a key is moved towards the value, instead of adding to it.

    S_t = γ_t S_{t−1} + k_t u_tᵀ        u_t = β_t (v_t − γ_t S_{t−1}ᵀ k_t)        o_t = S_tᵀ q_t

β_t is the step size (0: nothing is written; 1: with a key of norm one, the old value is replaced), γ_t = exp(log_decay_t) the decay,
1 by default. Keys of norm at most one and 0 ≤ β ≤ 2 keep S bounded; that is up to the caller.

`delta_scan` works in chunks of C. Inside a chunk that starts from S the corrections u solve a triangular system, with D_ij = γ_{j+1} ⋯ γ_i,

    (I + A) U = β (V − γ_1⋯γ_i K S)        A_ij = β_i D_ij k_i·k_j  where j < i,

and (I + A)⁻¹ is computed for all chunks at once. The loop over chunks then takes two matmuls per chunk, and the outputs are those of
`scan` with U in place of V. Time O(L·C·(C + F + V) + L·F·V). The backward pass needs only the states between chunks: memory
O(L·F·V/C). `delta_scan_definition` is the loop over time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .chunks import CHUNK, cumulate, decay_across, decay_between, decay_from_start, decay_to_end, from_chunks, scaled, to_chunks
from .numerics import accumulation_dtype, first_derivatives_only, no_autocast


@no_autocast
def delta_scan(
    q_BLHF: Tensor,
    k_BLHF: Tensor,
    v_BLHV: Tensor,
    beta_BLH: Tensor,
    log_decay_BLH: Tensor | None = None,
    state_BHFV: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """out_BLHV and the last state_BHFV, in float32 or wider. `log_decay_BLH` is finite and ≤ 0."""
    (B, L, H, F), V = q_BLHF.shape, v_BLHV.shape[-1]
    if L <= 1:
        return delta_scan_definition(q_BLHF, k_BLHF, v_BLHV, beta_BLH, log_decay_BLH, state_BHFV)
    if state_BHFV is None:
        state_BHFV = q_BLHF.new_zeros(B, H, F, V, dtype=accumulation_dtype(q_BLHF))
    size = 1 << (min(chunk, L) - 1).bit_length()  # a power of two can be halved down to one
    decay = None if log_decay_BLH is None else log_decay_BLH.unsqueeze(-1)
    return DeltaScan.apply(q_BLHF, k_BLHF, v_BLHV, beta_BLH.unsqueeze(-1), decay, state_BHFV, size)  # type: ignore[no-untyped-call]


def delta_scan_definition(
    q_BLHF: Tensor, k_BLHF: Tensor, v_BLHV: Tensor, beta_BLH: Tensor, log_decay_BLH: Tensor | None = None, state_BHFV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same, one step at a time."""
    (B, L, H, F), precise = q_BLHF.shape, accumulation_dtype(q_BLHF)
    state = q_BLHF.new_zeros(B, H, F, v_BLHV.shape[-1], dtype=precise) if state_BHFV is None else state_BHFV
    outs = []
    for t in range(L):
        q, k, v, beta = (x[:, t].to(precise) for x in (q_BLHF, k_BLHF, v_BLHV, beta_BLH))
        if log_decay_BLH is not None:
            state = state * log_decay_BLH[:, t].to(precise).exp()[..., None, None]
        answer = torch.matmul(k.unsqueeze(-2), state).squeeze(-2)
        state = state + k.unsqueeze(-1) * (beta.unsqueeze(-1) * (v - answer)).unsqueeze(-2)
        outs.append(torch.matmul(q.unsqueeze(-2), state).squeeze(-2))
    return (torch.stack(outs, 1).to(v_BLHV.dtype) if outs else v_BLHV), state


class DeltaScan(torch.autograd.Function):
    """In chunks (N, C, size), N = chunks · B · H, the chunks outermost, as in `scan`."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BLHF: Tensor,
        k_BLHF: Tensor,
        v_BLHV: Tensor,
        beta_BLH1: Tensor,
        decay_BLH1: Tensor | None,
        state_BHFV: Tensor,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        q, k, v, beta = (to_chunks(x, size) for x in (q_BLHF, k_BLHF, v_BLHV, beta_BLH1))
        run = cumulate(decay_BLH1, size)
        left = None if run is None else decay_between(run)
        enter = decay_from_start(run)
        first = state_BHFV.flatten(0, 1)
        states = first.new_empty(-(-q_BLHF.shape[1] // size) + 1, *first.shape)  # before each chunk, and at the end
        states[0] = first
        inverse = _inverse(beta * _earlier(k, left))
        erase, u = torch.bmm(inverse, beta * scaled(k, enter)), torch.bmm(inverse, beta * v)
        chunks = [x.unflatten(0, (len(states) - 1, -1)) for x in (erase, u, scaled(k, decay_to_end(run)))]
        over = decay_across(run, states)
        for n, (erase_n, u_n, k_n) in enumerate(zip(*chunks, strict=True)):
            u_n.baddbmm_(erase_n, states[n], alpha=-1)
            torch.baddbmm(states[n] if over is None else states[n] * over[n], k_n.mT, u_n, out=states[n + 1])
        out = torch.bmm(_decayed(torch.bmm(q, k.mT), left), u).baddbmm_(scaled(q, enter), states[:-1].flatten(0, 1))
        ctx.size = size
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BLHF, k_BLHF, v_BLHV, beta_BLH1, decay_BLH1, states)
        return from_chunks(out, v_BLHV), states[-1].view(state_BHFV.shape).clone()

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_out: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        q_BLHF, k_BLHF, v_BLHV, beta_BLH1, decay_BLH1, states = ctx.saved_tensors
        d_out = torch.zeros_like(v_BLHV) if d_out is None else d_out
        q, k, v, beta, do = (to_chunks(x, ctx.size) for x in (q_BLHF, k_BLHF, v_BLHV, beta_BLH1, d_out))
        run = cumulate(decay_BLH1, ctx.size)
        left = None if run is None else decay_between(run)
        enter, leave, over = decay_from_start(run), decay_to_end(run), decay_across(run, states)
        before = states[:-1].flatten(0, 1)
        # the forward pass again, all chunks at once, now that the states between them are known
        earlier, asked = _earlier(k, left), scaled(k, enter)
        inverse = _inverse(beta * earlier)
        erase, missing = torch.bmm(inverse, beta * asked), torch.baddbmm(v, asked, before, alpha=-1)
        u = torch.bmm(inverse, beta * missing)
        # from the last chunk to the first
        du = torch.bmm(_decayed(torch.bmm(q, k.mT), left).mT, do)
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
        by_q, by_k = _decayed(torch.bmm(do, u.mT), left), _decayed(torch.bmm(dv, u.mT), left).tril_(-1).neg_()
        dq = torch.bmm(by_q, k) + scaled(torch.bmm(do, before.mT), enter)
        dk_read = torch.bmm(by_k, k) - scaled(torch.bmm(dv, before.mT), enter)
        after = dstates[1:].flatten(0, 1)
        dk_written = torch.bmm(by_q.mT, q).baddbmm_(by_k.mT, k) + scaled(torch.bmm(u, after.mT), leave)
        d_decay = None
        if decay_BLH1 is not None and ctx.needs_input_grad[4]:
            # a cumulative logarithm appears as +run_i where token i reads, as −run_j where j was written, the last one with the state
            d_run = (q * dq + k * (dk_read - dk_written)).sum(-1, keepdim=True)
            d_run[:, -1] += (states[1:].flatten(0, 1) * after).sum((-2, -1)).unsqueeze(-1)
            d_decay = from_chunks(d_run.flip(1).cumsum(1).flip(1), decay_BLH1)
        d_state = dstates[0].view(q_BLHF.shape[0], q_BLHF.shape[2], *dstates.shape[2:])
        dq, dk, dv = from_chunks(dq, q_BLHF), from_chunks(dk_read + dk_written, k_BLHF), from_chunks(dv, v_BLHV)
        return dq, dk, dv, from_chunks(d_beta, beta_BLH1), d_decay, d_state, None


def _decayed(pairs: Tensor, left: Tensor | None) -> Tensor:
    """D_ij of each pair, and zero where j > i; in place."""
    return pairs.tril_() if left is None else pairs.mul_(left)


def _earlier(k: Tensor, left: Tensor | None) -> Tensor:
    """D_ij k_i·k_j where j < i."""
    return _decayed(torch.bmm(k, k.mT), left).tril_(-1)


def _inverse(lower: Tensor) -> Tensor:
    """(I + lower)⁻¹ of matrices that are zero on and above the diagonal, of a size that is a power of two.

    From blocks of one up to the whole, by [[P, 0], [X, Q]]⁻¹ = [[P⁻¹, 0], [−Q⁻¹ X P⁻¹, Q⁻¹]], in a few batched matmuls: 512 systems of
    64 took 9 ms; `solve_triangular`, which calls LAPACK once per matrix, 35 to 40 (one core, float32).
    """
    inverse = torch.eye(lower.shape[1], dtype=lower.dtype, device=lower.device).repeat(len(lower), 1, 1)
    half = 1
    while half < lower.shape[1]:
        done, given = _on_diagonal(inverse, 2 * half), _on_diagonal(lower, 2 * half)
        done[..., half:, :half] = -(done[..., half:, half:] @ given[..., half:, :half] @ done[..., :half, :half])
        half *= 2
    return inverse


def _on_diagonal(x: Tensor, size: int) -> Tensor:
    """The blocks of that size on the diagonal, as a view (N, blocks, size, size)."""
    return x.unflatten(1, (-1, size)).unflatten(3, (-1, size)).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)

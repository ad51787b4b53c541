"""Sums of outer products along a sequence, with decay: the core of every attention that is also a recurrent network.

    S_t = γ_t ∘ S_{t−1} + k_t v_tᵀ        o_t = S_tᵀ q_t        γ_t = exp(log_decay_t), 1 unless given

Decay is one number per head, or one per feature (a row of S). `scan` works in chunks: between chunks through the state, inside a
chunk as a masked matmul (q kᵀ ∘ D) v with D_ij = γ_{j+1} ⋯ γ_i. Time O(L·(C + F)·V). The backward pass needs only the L/C states between
chunks: memory O(L·F·V/C). `scan_definition` is the loop over time.

Cumulative decays are never divided: they underflow after a few hundred steps. D_ij is the exponential of a difference of cumulative
logarithms, which is never positive where j ≤ i. With decay per feature there is no such matrix; it would take one per feature. There a
chunk is halved recursively: queries in the second half of a piece read keys in its first half through the border r between them,
D_ij = exp(run_i − run_r) · exp(run_r − run_j), again two exponentials of something never positive, and matmuls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .chunks import CHUNK, cumulate, decay_across, decay_between, decay_from_start, decay_to_end, from_chunks, scaled, to_chunks
from .numerics import accumulation_dtype, first_derivatives_only, no_autocast


@no_autocast
def scan(
    q_BLHF: Tensor, k_BLHF: Tensor, v_BLHV: Tensor, log_decay: Tensor | None = None, state_BHFV: Tensor | None = None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """out_BLHV and the last state_BHFV, in float32 or wider. `log_decay`, finite and ≤ 0, is (B, L, H), or (B, L, H, F) per feature."""
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
    """The same, one step at a time."""
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
        out = torch.baddbmm(_within(q, k, v, run), scaled(q, decay_from_start(run)), states[:-1].flatten(0, 1))
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
        dq, dk, dv = _within_backward(q, k, v, run, do)
        dq += scaled(torch.bmm(do, before.mT), enter)
        dk += scaled(torch.bmm(v, after.mT), leave)
        dv.baddbmm_(scaled(k, leave), after)
        d_decay = None
        if decay_BLHF is not None and ctx.needs_input_grad[3]:
            # a cumulative logarithm appears as +run_i with every q_i, as −run_j with every k_j, and the last one with the state
            d_run = q * dq - k * dk
            d_run[:, -1] += (states[1:].flatten(0, 1) * after).sum(-1)
            d_run = d_run.sum(-1, keepdim=True) if decay_BLHF.shape[-1] == 1 else d_run
            d_decay = from_chunks(d_run.flip(1).cumsum(1).flip(1), decay_BLHF)
        d_state = dstates[0].view(q_BLHF.shape[0], q_BLHF.shape[2], *dstates.shape[2:])
        return from_chunks(dq, q_BLHF), from_chunks(dk, k_BLHF), from_chunks(dv, v_BLHV), d_decay, d_state, None


def _within(q: Tensor, k: Tensor, v: Tensor, run: Tensor | None) -> Tensor:
    """What queries read from keys of the same chunk."""
    if run is None or run.shape[-1] == 1:
        return torch.bmm(_scores(q, k, run), v)
    out = (q * k).sum(-1, keepdim=True) * v  # a token's own key has not decayed
    for half, late, early in _halves(run):
        (_, q1), (k0, _), (v0, _), (_, out1) = (_split(x, half) for x in (q, k, v, out))
        out1.baddbmm_(torch.bmm(q1 * late, (k0 * early).mT), v0)
    return out


def _within_backward(q: Tensor, k: Tensor, v: Tensor, run: Tensor | None, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if run is None or run.shape[-1] == 1:
        pairs = torch.bmm(do, v.mT)
        pairs = pairs.tril_() if run is None else pairs.mul_(decay_between(run))
        return torch.bmm(pairs, k), torch.bmm(pairs.mT, q), torch.bmm(_scores(q, k, run).mT, do)
    own = (do * v).sum(-1, keepdim=True)
    dq, dk, dv = own * k, own * q, (q * k).sum(-1, keepdim=True) * do
    for half, late, early in _halves(run):
        (_, q1), (k0, _), (v0, _), (_, do1) = (_split(x, half) for x in (q, k, v, do))
        (_, dq1), (dk0, _), (dv0, _) = (_split(x, half) for x in (dq, dk, dv))
        q1, k0, pairs = q1 * late, k0 * early, torch.bmm(do1, v0.mT)
        dq1 += torch.bmm(pairs, k0).mul_(late)
        dk0 += torch.bmm(pairs.mT, q1).mul_(early)
        dv0.baddbmm_(torch.bmm(k0, q1.mT), do1)
    return dq, dk, dv


def _halves(run: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Halves of pieces, largest first: their size, the decay from the border to each later token, and from each earlier token to it."""
    half = run.shape[1] // 2
    while half:
        run0, run1 = _split(run, half)
        border = run0[:, -1:]
        yield half, (run1 - border).exp_(), (border - run0).exp_()
        half //= 2


def _split(x: Tensor, half: int) -> tuple[Tensor, ...]:
    return x.view(-1, 2, half, x.shape[-1]).unbind(1)


def _scores(q: Tensor, k: Tensor, run: Tensor | None) -> Tensor:
    scores = torch.bmm(q, k.mT)
    return scores.tril_() if run is None else scores.mul_(decay_between(run))

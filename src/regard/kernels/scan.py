"""Sums of outer products along a sequence, with decay: the core of every attention that is also a recurrent network.

    S_t = γ_t · S_{t−1} + k_t v_tᵀ        o_t = S_tᵀ q_t        γ_t = exp(log_decay_t), 1 unless given

`scan` does it in chunks: inside a chunk as a masked product (q kᵀ ∘ D) v with D_ij = γ_{j+1} ⋯ γ_i, between chunks through
the state. Time O(L·(C + F)·V), memory O(L·C): linear in the length. `scan_definition` is the loop over time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64


def scan(
    q_BLHF: Tensor,
    k_BLHF: Tensor,
    v_BLHV: Tensor,
    log_decay_BLH: Tensor | None = None,
    state_BHFV: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """out_BLHV and the last state_BHFV. Decay is given as logarithms ≤ 0, so that products of many never underflow."""
    B, L, H, F = q_BLHF.shape
    V = v_BLHV.shape[-1]
    state = q_BLHF.new_zeros(B, H, F, V) if state_BHFV is None else state_BHFV
    if L == 0:
        return v_BLHV, state
    C = min(chunk, L)
    count = -(-L // C)
    q, k, v = (_chunks(x, count, C) for x in (q_BLHF, k_BLHF, v_BLHV))  # (B, H, chunks, C, size)
    causal_CC = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    scores = torch.matmul(q, k.transpose(-1, -2))
    if log_decay_BLH is None:
        scores = scores.masked_fill(~causal_CC, 0)
        sums = torch.matmul(k.transpose(-1, -2), v)
        before = torch.cat([state.unsqueeze(2), state.unsqueeze(2) + sums.cumsum(2)], 2)
        out = torch.matmul(scores, v) + torch.matmul(q, before[:, :, :-1])
        last = before[:, :, -1]
    else:
        # differences of cumulated logarithms, never ratios of cumulated products: those underflow after some hundred steps
        run = _chunks(log_decay_BLH.unsqueeze(-1), count, C).squeeze(-1).cumsum(-1)  # (B, H, chunks, C)
        between = (run.unsqueeze(-1) - run.unsqueeze(-2)).masked_fill(~causal_CC, -torch.inf)
        whole = run[..., -1:]
        sums = torch.matmul((k * (whole - run).exp().unsqueeze(-1)).transpose(-1, -2), v)
        states = []
        for n in range(count):
            states.append(state)
            state = state * whole[:, :, n].exp().unsqueeze(-1) + sums[:, :, n]
        out = torch.matmul(scores * between.exp(), v) + torch.matmul(q * run.exp().unsqueeze(-1), torch.stack(states, 2))
        last = state
    return out.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :L], last


def scan_definition(
    q_BLHF: Tensor, k_BLHF: Tensor, v_BLHV: Tensor, log_decay_BLH: Tensor | None = None, state_BHFV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same, one step at a time."""
    state = q_BLHF.new_zeros(len(q_BLHF), *q_BLHF.shape[2:], v_BLHV.shape[-1]) if state_BHFV is None else state_BHFV
    outs = []
    for t in range(q_BLHF.shape[1]):
        if log_decay_BLH is not None:
            state = state * log_decay_BLH[:, t].exp()[..., None, None]
        state = state + torch.einsum("bhf,bhv->bhfv", k_BLHF[:, t], v_BLHV[:, t])
        outs.append(torch.einsum("bhf,bhfv->bhv", q_BLHF[:, t], state))
    return (torch.stack(outs, 1) if outs else v_BLHV), state


def _chunks(x_BLHF: Tensor, count: int, size: int) -> Tensor:
    """(B, L, H, F) → (B, H, chunks, C, F), filled up with zeros: a key of zeros adds nothing, a logarithm of zero is no decay."""
    x = pad(x_BLHF, (0, 0, 0, 0, 0, count * size - x_BLHF.shape[1]))
    return x.view(len(x), count, size, *x.shape[2:]).permute(0, 3, 1, 2, 4)

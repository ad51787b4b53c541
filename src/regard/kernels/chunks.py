"""Sequences cut into chunks, and decay inside and across them: what the chunked recurrences share.

A chunked tensor is (chunks · B · H, C, F) with the chunks outermost, so that the states of all sequences advance together. Decays
are kept as logarithms cumulated inside each chunk, `run`; None stands for no decay.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .numerics import accumulation_dtype

CHUNK = 64


def to_chunks(x_BLHF: Tensor, size: int) -> Tensor:
    """(B, L, H, F) → (chunks · B · H, C, F), zero-padded: a key of zeros adds nothing, a log decay of zero means no decay."""
    B, L, H, F = x_BLHF.shape
    count = -(-L // size)
    if L % size:
        x_BLHF = pad(x_BLHF, (0, 0, 0, 0, 0, count * size - L))
    x = x_BLHF.reshape(B, count, size, H, F).permute(1, 0, 3, 2, 4)
    return x.to(accumulation_dtype(x_BLHF)).contiguous().view(count * B * H, size, F)


def from_chunks(x: Tensor, like_BLHF: Tensor) -> Tensor:
    """The inverse of `to_chunks`, in the shape and dtype of `like_BLHF`."""
    B, L, H, _ = like_BLHF.shape
    size = x.shape[1]
    x = x.view(-(-L // size), B, H, size, x.shape[-1]).permute(1, 0, 3, 2, 4)
    return x.to(like_BLHF.dtype).flatten(1, 2)[:, :L]


def cumulate(decay_BLHF: Tensor | None, size: int) -> Tensor | None:
    """Log decays cumulated inside each chunk."""
    return None if decay_BLHF is None else to_chunks(decay_BLHF, size).cumsum(1)


Halves = list[
    tuple[int, Tensor, Tensor]
]  # of pieces: their size, the decay from the border to each later token, from each earlier token to it


def decay_between(run: Tensor | None) -> Tensor | Halves | None:
    """Decay of a key until each later token of its chunk, for `products`.

    One decay per token makes a matrix, D_ij = exp(run_i − run_j), zero where j > i. One per feature would make a matrix for each; there a
    chunk, whose size is a power of two, is halved down to single tokens, and a pair decays through the border r of the halves it is in:
    exp(run_i − run_r) · exp(run_r − run_j). No exponent is ever positive, so nothing overflows, and what vanishes is zero.
    """
    if run is None:
        return None
    if run.shape[-1] == 1:
        after = torch.ones(run.shape[1], run.shape[1], dtype=torch.bool, device=run.device).triu(1)
        return (run - run.mT).masked_fill_(after, -torch.inf).exp_()
    halves, half = [], run.shape[1] // 2
    while half:
        run0, run1 = _in_halves(run, half)
        border = run0[:, -1:]
        halves.append((half, (run1 - border).exp_(), (border - run0).exp_()))
        half //= 2
    return halves


def products(q: Tensor, k: Tensor, between: Tensor | Halves | None) -> Tensor:
    """q_i·k_j within each chunk, (N, C, C), with the features of k_j decayed from token j to token i; zero where j > i."""
    if not isinstance(between, list):
        pairs = torch.bmm(q, k.mT)
        return pairs.tril_() if between is None else pairs.mul_(between)
    pairs = torch.diag_embed((q * k).sum(-1))  # a token's own key has not decayed
    for half, late, early in between:
        (_, q1), (k0, _), corner = _in_halves(q, half), _in_halves(k, half), _corners(pairs, half)
        corner.copy_(torch.bmm(q1 * late, (k0 * early).mT).view(corner.shape))
    return pairs


def products_backward(d_pairs: Tensor, q: Tensor, k: Tensor, between: Tensor | Halves | None) -> tuple[Tensor, Tensor]:
    """The gradients of `products` with respect to q and k, given that of each pair with j ≤ i; others are not read. Writes into `d_pairs`."""
    if not isinstance(between, list):
        d_pairs = d_pairs.tril_() if between is None else d_pairs.mul_(between)
        return torch.bmm(d_pairs, k), torch.bmm(d_pairs.mT, q)
    own = d_pairs.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    dq, dk = own * k, own * q
    for half, late, early in between:
        (_, q1), (k0, _), (_, dq1), (dk0, _) = (_in_halves(x, half) for x in (q, k, dq, dk))
        corner = _corners(d_pairs, half).flatten(0, 1)
        dq1 += torch.bmm(corner, k0 * early).mul_(late)
        dk0 += torch.bmm(corner.mT, q1 * late).mul_(early)
    return dq, dk


def decay_from_start(run: Tensor | None) -> Tensor | None:
    """Decay from the start of the chunk to each token: what is left there of the state before the chunk."""
    return None if run is None else run.exp()


def decay_to_end(run: Tensor | None) -> Tensor | None:
    """Decay from each token to the end of the chunk: what is left there of a key."""
    return None if run is None else (run[:, -1:] - run).exp()


def decay_across(run: Tensor | None, states: Tensor) -> Tensor | None:
    """Decay from the start of each chunk to its end, shaped like `states` without the last."""
    return None if run is None else run[:, -1].exp().view(len(states) - 1, states.shape[1], run.shape[-1], 1)


def scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    """x · factor, or x where there is none."""
    return x if factor is None else x * factor


def on_diagonal(x: Tensor, size: int) -> Tensor:
    """The blocks of that size on the diagonal, as a view (N, blocks, size, size)."""
    return x.unflatten(1, (-1, size)).unflatten(3, (-1, size)).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def _corners(x: Tensor, half: int) -> Tensor:
    """In each block of two halves: rows of the second, columns of the first, as a view (N, blocks, half, half)."""
    return on_diagonal(x, 2 * half)[..., half:, :half]


def _in_halves(x: Tensor, half: int) -> tuple[Tensor, ...]:
    """The first and the second half of each piece of 2 · half tokens, as views (N · pieces, half, F)."""
    return x.view(-1, 2, half, x.shape[-1]).unbind(1)

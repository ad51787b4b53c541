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


def decay_between(run: Tensor) -> Tensor:
    """D_ij between every two tokens of a chunk, zero where j > i."""
    after = torch.ones(run.shape[1], run.shape[1], dtype=torch.bool, device=run.device).triu(1)
    return (run - run.mT).masked_fill_(after, -torch.inf).exp_()


def decay_from_start(run: Tensor | None) -> Tensor | None:
    """From the start of the chunk to each token: what is left there of the state before the chunk."""
    return None if run is None else run.exp()


def decay_to_end(run: Tensor | None) -> Tensor | None:
    """From each token to the end of the chunk: what is left there of a key."""
    return None if run is None else (run[:, -1:] - run).exp()


def decay_across(run: Tensor | None, states: Tensor) -> Tensor | None:
    """From the start of each chunk to its end, shaped like `states` without the last."""
    return None if run is None else run[:, -1].exp().view(len(states) - 1, states.shape[1], run.shape[-1], 1)


def scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    """x · factor, or x where there is none."""
    return x if factor is None else x * factor

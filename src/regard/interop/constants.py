"""Tensors that some files hold although they are not parameters: tables and masks, which must have the values that are computed here."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layers.positions.absolute import sinusoids
from .family import Settings


def is_counting(x: Tensor, settings: Settings) -> bool:
    """0, 1, 2 …"""
    return x.flatten().equal(torch.arange(x.numel()).to(x.dtype))


def is_zeros(x: Tensor, settings: Settings) -> bool:
    return not x.any()


def is_causal_mask(x: Tensor, settings: Settings) -> bool:
    """Ones up to the diagonal, of one or more batch dimensions of size 1."""
    return (
        x.dim() >= 2 and x.numel() == x.shape[-1] * x.shape[-2] and x.view(x.shape[-2:]).equal(torch.ones_like(x.view(x.shape[-2:])).tril())
    )


def is_mask_value(x: Tensor, settings: Settings) -> bool:
    """One large negative number, the score of masked keys."""
    return x.numel() == 1 and float(x) <= -1e4


def is_rotary_frequency(x: Tensor, settings: Settings) -> bool:
    """Frequencies without scaling, as files of old have them."""
    base, size = settings["base"], 2 * x.numel()
    return torch.allclose(x.double(), base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size), rtol=1e-2)  # some are in bfloat16


def is_sinusoids(x: Tensor, settings: Settings) -> bool:
    """Sines, then cosines."""
    return x.dim() == 2 and torch.allclose(x.float(), sinusoids(torch.arange(len(x)), x.shape[1], layout="halves"), atol=1e-5)

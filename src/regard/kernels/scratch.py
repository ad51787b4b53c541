"""Buffers used again and again: allocating fresh memory takes longer than filling it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """Buffers by name: asking again under the same name gives the same memory, with whatever it holds.

    Args:
        like: tensor whose dtype and device the buffers have.
    """

    def __init__(self, like: Tensor):
        self.like, self.held = like, dict[str, Tensor]()

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = torch.empty(size, dtype=self.like.dtype, device=self.like.device)
        return self.held[name][:size].view(shape)

"""Memory used again and again: getting fresh memory takes longer than filling it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Room:
    """Buffers by name. What is asked for again under the same name lies in the same place."""

    def __init__(self, like: Tensor):
        self.like, self.held = like, dict[str, Tensor]()

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = torch.empty(size, dtype=self.like.dtype, device=self.like.device)
        return self.held[name][:size].view(shape)

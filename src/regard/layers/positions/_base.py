"""What a position scheme may do: add to embeddings, change queries and keys, give a bias to the scores."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ...errors import ShapeError
from ...kernels import Bias

Layout = Literal["interleaved", "halves"]
Place = int | tuple[int, ...]  # where the first token stands, in all rows or in each: `State.position`


class Position(nn.Module):
    """A position scheme. Each overrides what it does and leaves the rest as it is here: nothing.

    Positions are whole numbers from 0 on, and go on where a state stopped.
    """

    def add(self, x_BLD: Tensor, at: Tensor) -> Tensor:
        """Embeddings of tokens that stand at `at`, (L,) or (B, L), with their places added."""
        return x_BLD

    def place(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Place, k_from: Place) -> tuple[Tensor, Tensor, Bias | None]:
        """Queries at q_from, q_from + 1 …, keys at k_from, k_from + 1 …, and what to add to their scores. A row may have its own.

        When a state holds older keys, those given are the new ones; the bias is asked for the old ones as well.
        """
        return q_BLHK, k_BMHK, None


def angles(at: Tensor, size: int, base: float, dtype: torch.dtype, stretch: tuple[float, ...] = ()) -> Tensor:
    """at · base^(−2c/size) for c = 0 … size/2 − 1, on a new last axis; slower if they are stretched (see `Rotary`).

    In float32 at least: a half-precision number cannot even hold the position 257.
    """
    precise = torch.promote_types(dtype, torch.float32)
    # the frequencies are made in float64 on the CPU, so that every device turns by the same angles
    frequency = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if stretch:
        factor, *slow = stretch
        kept: float | Tensor = 0.0 if not slow else (frequency * slow[2] / (2 * torch.pi) - slow[0]).div(slow[1] - slow[0]).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / factor)
    return at.to(precise)[..., None] * frequency.to(at.device, precise)


def cells(at: Tensor, columns: int, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row and column of each position in a picture read line by line, after `prefix` tokens that stand nowhere; and which are inside."""
    inside = at >= prefix
    cell = (at - prefix).clamp(min=0)
    return cell.div(columns, rounding_mode="floor"), cell % columns, inside


def divisible(what: str, size: int, by: int) -> None:
    if size <= 0 or size % by:
        raise ShapeError(f"{what} is {size}, and must be a multiple of {by}; choose {max(by, size // by * by)} or {(size // by + 1) * by}")

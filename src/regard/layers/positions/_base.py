"""The contract of a position scheme: add to embeddings, change queries and keys, or give a bias for the scores."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ...errors import ShapeError
from ...kernels import Bias, accumulation_dtype

Layout = Literal["interleaved", "halves"]
Offset = int | tuple[int, ...]  # position of the first token, for all rows or per row: `State.position`


class Position(nn.Module):
    """A position scheme. Subclasses override one of the methods; by default they change nothing.

    Positions are integers from 0, and continue where a state stopped.
    """

    def add(self, x_BLD: Tensor, at: Tensor) -> Tensor:
        """Embeddings of tokens at positions `at`, (L,) or (B, L), with positional encodings added."""
        return x_BLD

    def encode(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Offset, k_from: Offset) -> tuple[Tensor, Tensor, Bias | None]:
        """Encoded queries at q_from, q_from + 1 …, keys at k_from, k_from + 1 …, and a bias for their scores. Offsets may differ per row.

        When a state holds older keys, those given are the new ones; the bias covers the old ones as well.

        Args:
            q_BLHK: queries.
            k_BMHK: keys.
            q_from: position of the first query.
            k_from: position of the first key.
        """
        return q_BLHK, k_BMHK, None


def angles(at: Tensor, frequency: Tensor, dtype: torch.dtype) -> Tensor:
    """The products of positions and frequencies, on a new last axis. In float32 at least: bfloat16 cannot even represent the position 257."""
    precise = accumulation_dtype(dtype)
    return at.to(precise)[..., None] * frequency.to(at.device, precise)


def cells(at: Tensor, columns: int, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row and column of each position in an image in row-major order, after `prefix` tokens outside it; and which positions are inside."""
    inside = at >= prefix
    cell = (at - prefix).clamp(min=0)
    return cell.div(columns, rounding_mode="floor"), cell % columns, inside


def divisible(what: str, size: int, by: int) -> None:
    if size <= 0 or size % by:
        raise ShapeError(f"{what} is {size}; expected a multiple of {by}: choose {max(by, size // by * by)} or {(size // by + 1) * by}")

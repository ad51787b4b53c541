"""Memory of a mechanism between two calls of a stream."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from ..errors import StateNotSupported

Position = int | tuple[int, ...]  # of the next token: one number if all rows have read the same number of tokens, else one per row


class State:
    """The past of a stream, one row per batch row. The caller owns it; a mechanism reads and updates it.

    `reorder` follows beams, `reset` starts some rows over, `join` appends rows, `back` drops the newest tokens, `detach` cuts the
    gradient to the past. Rows that started at different times are aligned at the end: each counts its positions from its own
    first token (`position`).

    Args:
        batch: number of rows.
    """

    grows: ClassVar[bool] = True  # each step brings new keys; False: all keys are given at every step

    def __init__(self, batch: int):
        self.batch = batch
        self.length = 0  # tokens that the oldest row has read
        self._first: tuple[int, ...] | None = None  # where each row starts, the oldest at 0; None if all do

    def position(self) -> Position:
        """Position of the next token of each row: how many it has read since it started."""
        return self.length if self._first is None else tuple(self.length - first for first in self._first)

    def reorder(self, rows: Tensor) -> Self:
        """Row b continues what row `rows[b]` was; the number of rows may change."""
        self.batch = len(rows)
        if self._first is not None:
            self._start_at([self._first[row] for row in rows.tolist()])
        return self

    def reset(self, rows: Tensor) -> Self:
        """The chosen rows (indices, or a boolean per row) forget everything and count from 0 again."""
        first = list(self._first or (0,) * self.batch)
        for row in (rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows).tolist():
            first[row] = self.length
        self._start_at(first)
        return self

    def join(self, other: Self) -> Self:
        """Append the rows of `other`. Rows that have read more or less than others keep their own past, and count from it."""
        self._check_join(other)
        lengths = [n for state in (self, other) for n in state._lengths()]
        self.batch += other.batch
        self.length = max(self.length, other.length)
        self._start_at([self.length - n for n in lengths])
        return self

    def detach(self) -> Self:
        """Stop gradients here: they reach no further back."""
        raise NotImplementedError

    def back(self, count: int) -> Self:
        """All rows forget their last `count` tokens, out of those the last call brought."""
        raise StateNotSupported(f"a {type(self).__name__} cannot forget its last tokens; a Cache can")

    def keep_keys(self) -> None:
        """Keep every key from the first step on, so that attention weights can be captured. A cache does so anyway."""

    def _lengths(self) -> tuple[int, ...]:
        position = self.position()
        return (position,) * self.batch if isinstance(position, int) else position

    def _start_at(self, first: list[int]) -> None:
        """Rows start at `first`; positions before all of them are not counted any more."""
        earliest = min(first, default=0)
        self.length -= earliest
        self._first = tuple(n - earliest for n in first) if any(n > earliest for n in first) else None

    def _check_join(self, other: State) -> None:
        """Refuse, before anything is changed, what cannot be joined."""
        if type(other) is not type(self):
            raise StateNotSupported(
                f"cannot join the rows of a {type(other).__name__} to a {type(self).__name__}; join states started by the same layer"
            )


def positions(first: Position, count: int, device: torch.device | str | None = None) -> Tensor:
    """Positions of `count` tokens from `first` on: (L,), or (B, L) where rows differ.

    Args:
        first: position of the first token, or that of each row.
        count: number of tokens L.
        device: device of the result.
    """
    after = torch.arange(count, device=device)
    return after + (first if isinstance(first, int) else torch.tensor(first, device=device)[:, None])


def zero_rows(x: Tensor, rows: Tensor) -> Tensor:
    """A copy with zeros in the chosen rows."""
    chosen = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    chosen[rows] = True
    return x.masked_fill(chosen.view(-1, *[1] * (x.dim() - 1)), 0)

"""The KV cache of a stream."""

from __future__ import annotations

from typing import Self, TypeVar

import torch
from torch import Tensor

from ..errors import StateNotSupported
from ..kernels import Bias, BiasAtPositions
from ..patterns import Pattern, at_positions, from_row_start
from ._state import State

BiasLike = TypeVar("BiasLike", bound=Tensor | Bias | None)


class Cache(State):
    """All keys and values so far (and gates, if the mechanism reads any) or, if the pattern reaches no further, the first `sinks` and the last `window`.

    Without gradients, buffers grow by doubling, so a step copies nothing of the past. Old keys are dropped in bulk: a rolling cache holds at most
    sinks + 2 · window keys, and the pattern masks those that are already too old. While rows start at different positions, no column
    holds the first keys of all of them, so with sinks nothing is dropped.

    Args:
        batch: number of rows.
        reach: earlier keys and first keys that matter, as `Pattern.reach` gives them; None: all.
    """

    def __init__(self, batch: int, reach: tuple[int, int] | None = None):
        super().__init__(batch)
        self.window = None if reach is None else max(reach[0], 1)
        self.sinks = 0 if reach is None else reach[1]
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._gates: Tensor | None = None
        self._held = 0
        self._positions: Tensor | None = None  # of the keys held; None while they are 0, 1, 2 …

    def append(self, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, gates_BMHE: Tensor | None = None) -> tuple[Tensor, Tensor, Pattern]:
        """Append new keys and values; return all that are held, and the pattern over them. The gates held: `gates`.

        Args:
            k_BMHK: new keys.
            v_BMHV: new values.
            pattern: pattern on positions.
            gates_BMHE: gates of the new keys; None: the mechanism reads none.
        """
        self._drop_old()
        new = k_BMHK.shape[1]
        self._k, self._v = self._add(self._k, k_BMHK), self._add(self._v, v_BMHV)
        self._gates = None if gates_BMHE is None else self._add(self._gates, gates_BMHE)
        if self._positions is not None:
            arrived = torch.arange(self.length, self.length + new, device=self._positions.device)
            self._positions = torch.cat([self._positions, arrived])
        self._held += new
        self.length += new
        return self._k[:, : self._held], self._v[:, : self._held], self.over(pattern, new)

    def over(self, pattern: Pattern, queries: int) -> Pattern:
        """A pattern on positions, for the last `queries` queries over the keys held."""
        if self._first is not None:
            pattern = from_row_start(pattern, self._first)
        if self._positions is None:
            return pattern  # the keys held are at 0, 1, 2 … and the queries at their end
        return at_positions(pattern.fit(self.length, self.length), self._latest(queries), self._positions)

    def bias_over(self, bias: BiasLike, queries: int) -> BiasLike:
        """A bias on positions, for the last `queries` queries over the keys held. A tensor is taken to be over the keys held already."""
        if self._positions is None or not isinstance(bias, Bias):
            return bias
        return BiasAtPositions(bias, self._latest(queries), self._positions)  # type: ignore[return-value]

    def _latest(self, queries: int) -> Tensor:
        assert self._positions is not None
        return torch.arange(self.length - queries, self.length, device=self._positions.device)

    def _add(self, held: Tensor | None, new: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # the past may be part of a graph, even where only queries need gradients: never write into it
            return new if held is None else torch.cat([held[:, : self._held], new], 1)
        size = 0 if held is None else held.shape[1]
        if held is None or size < self._held + new.shape[1]:
            buffer = new.new_empty(len(new), max(2 * size, self._held + new.shape[1], 16), *new.shape[2:])
            if held is not None:
                buffer[:, : self._held] = held[:, : self._held]
            held = buffer
        held[:, self._held : self._held + new.shape[1]] = new
        return held

    def _move_rows(self, held: Tensor | None, rows: Tensor, moves: dict[int, int]) -> Tensor | None:
        if held is None or torch.is_grad_enabled():
            return None if held is None else held.index_select(0, rows)
        if len(rows) == self.batch and not moves.keys() & moves.values():  # sources stay in place: no new buffer needed
            held[list(moves), : self._held] = held[list(moves.values()), : self._held]
            return held
        buffer = held.new_empty(len(rows), *held.shape[1:])
        # copy only the filled part, half of the buffer on average
        torch.ops.aten.index.Tensor_out(held[:, : self._held], [rows.to(held.device)], out=buffer[:, : self._held])
        return buffer

    def _drop_old(self) -> None:
        if self.window is None or self._k is None or self._v is None or self._held <= self.sinks + 2 * self.window:
            return
        if self.sinks and self._first is not None:
            return
        device = self._k.device
        positions = torch.arange(self._held, device=device) if self._positions is None else self._positions
        kept = torch.cat([torch.arange(self.sinks, device=device), torch.arange(self._held - self.window, self._held, device=device)])
        self._k, self._v, self._positions = self._k[:, kept], self._v[:, kept], positions[kept]
        self._gates = None if self._gates is None else self._gates[:, kept]
        self._held = len(kept)

    def reorder(self, rows: Tensor) -> Self:
        moves = {to: source for to, source in enumerate(rows.tolist()) if to != source}
        if moves or len(rows) != self.batch:
            self._k, self._v = self._move_rows(self._k, rows, moves), self._move_rows(self._v, rows, moves)
            self._gates = self._move_rows(self._gates, rows, moves)
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)
        gap = self._has_gap(other)
        held, length = max(self._held, other._held), max(self.length, other.length)
        parts = ((self.batch, self._held), (other.batch, other._held))
        self._k, self._v = _stack_buffers((self._k, other._k), parts, held), _stack_buffers((self._v, other._v), parts, held)
        self._gates = _stack_buffers((self._gates, other._gates), parts, held)
        if not gap and self._k is not None:  # columns are the newest keys, without a gap
            self._positions = None if held == length else torch.arange(length - held, length, device=self._k.device)
        self._held = held
        return super().join(other)

    def _check_join(self, other: State) -> None:
        super()._check_join(other)
        assert isinstance(other, Cache)
        if (self.window, self.sinks) != (other.window, other.sinks):
            raise StateNotSupported("cannot join caches started under different patterns: they hold different parts of the past")
        if self._has_gap(other) and not (self.position() == other.position() == self.length and self._held == other._held):
            raise StateNotSupported(
                f"cannot join caches that hold the first {self.sinks} keys of rows of different lengths; join them before keys were dropped, "
                "or run them one by one"
            )

    def _has_gap(self, other: Cache) -> bool:
        """True if one of them holds the first and the newest keys, and not those between."""
        return self.sinks > 0 and not (self._positions is None and other._positions is None)

    def back(self, count: int) -> Self:
        needed = self.length - count if self.window is None else min(self.length - count, self.sinks + self.window)
        if count > min(self._lengths(), default=0) or self._held - count < needed:
            raise StateNotSupported(f"cannot drop the last {count} tokens: a row has read fewer, or keys before them were dropped already")
        self._held -= count
        self.length -= count
        self._positions = None if self._positions is None else self._positions[: self._held]
        return self

    def _start_at(self, first: list[int]) -> None:
        before = min(first, default=0)
        if before and self._k is not None and self._v is not None:  # no row attends there any more
            gone = min(before, self._held) if self._positions is None else int((self._positions < before).sum())
            self._k, self._v, self._held = self._k[:, gone:], self._v[:, gone:], self._held - gone
            self._gates = None if self._gates is None else self._gates[:, gone:]
            if self._positions is not None:
                at = self._positions[gone:] - before
                self._positions = None if len(at) == self.length - before else at
        super()._start_at(first)

    def detach(self) -> Self:
        self._k = None if self._k is None else self._k.detach()
        self._v = None if self._v is None else self._v.detach()
        self._gates = None if self._gates is None else self._gates.detach()
        return self

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Keys and values that are held, k_BMHK and v_BMHV."""
        assert self._k is not None and self._v is not None, "a cache holds keys after the first append"
        return self._k[:, : self._held], self._v[:, : self._held]

    def gates(self) -> Tensor | None:
        """The gates of the keys held, gates_BMHE."""
        return None if self._gates is None else self._gates[:, : self._held]

    def columns(self) -> Tensor:
        """Positions of the keys held, (M,), counted from the oldest row's first token."""
        device = None if self._k is None else self._k.device
        return torch.arange(self._held, device=device) if self._positions is None else self._positions

    def key_positions(self) -> Tensor:
        """Positions of the keys held, (1 or B, M), counted from each row's own first token, negative before it."""
        columns = self.columns()
        return columns[None] if self._first is None else columns - torch.tensor(self._first, device=columns.device)[:, None]


def _stack_buffers(held: tuple[Tensor | None, Tensor | None], parts: tuple[tuple[int, int], ...], length: int) -> Tensor | None:
    """The buffers of two caches of (rows, keys), one below the other and aligned at the end, zeros before; with space to grow."""
    like = held[0] if held[0] is not None else held[1]
    if like is None:
        return None
    buffer, row = like.new_zeros(sum(rows for rows, _ in parts), max(2 * length, 16), *like.shape[2:]), 0
    for x, (rows, keys) in zip(held, parts, strict=True):
        if x is not None:
            buffer[row : row + rows, length - keys : length] = x[:, :keys]
        row += rows
    return buffer

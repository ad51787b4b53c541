"""What a mechanism remembers between two calls when it goes step by step."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from ..errors import ShapeError, StateNotSupported
from ..kernels import Bias, PlacedBias
from ..patterns import Pattern, begun, full, placed

Position = int | tuple[int, ...]  # of the next token: one number where all rows have read as many, else one a row


class State:
    """The past of a stream: one row a batch row. The caller owns it; a mechanism reads it and moves it on.

    `reorder` follows a beam, `reset` begins some rows anew, `join` puts further rows below, `back` forgets the newest tokens, `detach` cuts
    the gradients to the past.
    Rows that began at different places are aligned at the end: each counts its positions from its own beginning (`position`).
    """

    grows: ClassVar[bool] = True  # the keys of each step are new ones; False: all keys are given at every step

    def __init__(self, batch: int):
        self.batch = batch
        self.length = 0  # tokens that the oldest row has seen
        self._first: tuple[int, ...] | None = None  # where each row began, the oldest at 0; None if all did there

    def position(self) -> Position:
        """Where the next token of each row stands: how many it has seen since it began."""
        return self.length if self._first is None else tuple(self.length - first for first in self._first)

    def reorder(self, rows: Tensor) -> Self:
        """Row b continues what row `rows[b]` was; the number of rows may change."""
        self.batch = len(rows)
        if self._first is not None:
            self._begin([self._first[row] for row in rows.tolist()])
        return self

    def reset(self, rows: Tensor) -> Self:
        """The chosen rows (indices, or a boolean a row) forget all they have seen, and count from 0 again."""
        first = list(self._first or (0,) * self.batch)
        for row in (rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows).tolist():
            first[row] = self.length
        self._begin(first)
        return self

    def join(self, other: Self) -> Self:
        """The rows of `other` go on below these. Rows that have read more or less than others keep their own past, and count from it."""
        self._joins(other)
        positions = [n for state in (self, other) for n in _each(state)]
        self.batch, self.length = self.batch + other.batch, max(self.length, other.length)
        self._begin([self.length - n for n in positions])
        return self

    def detach(self) -> Self:
        """Gradients go no further back than here."""
        raise NotImplementedError

    def back(self, count: int) -> Self:
        """All rows forget the last `count` tokens, of those that the last call took in."""
        raise StateNotSupported(f"a {type(self).__name__} cannot forget its last tokens; a Cache can")

    def keys(self) -> tuple[Tensor, Tensor] | None:
        """The keys still held, k_BMHK, and their positions; None if they were not kept one by one."""
        return None

    def keep_keys(self) -> None:
        """Hold the keys one by one from the first step on, for whoever wants to see weights. A cache does so anyway."""

    def extras(self) -> Tensor | None:
        """The extra numbers of the keys still held, extra_BMHE, for mechanisms that want some."""
        return None

    def over(self, pattern: Pattern, queries: int) -> Pattern:
        """The pattern as the last `queries` queries see the keys still held."""
        return pattern

    def bias_over(self, bias: Tensor | Bias | None, queries: int) -> Tensor | Bias | None:
        """The bias as the last `queries` queries add it to the keys still held. A tensor is taken to be over them already."""
        return bias

    def _begin(self, first: list[int]) -> None:
        """Rows begin at `first`; what is before all of them is not counted any more."""
        begin = min(first, default=0)
        self.length -= begin
        self._first = tuple(n - begin for n in first) if any(n > begin for n in first) else None

    def _joins(self, other: State) -> None:
        """Refuse, before anything is changed, what cannot be put together."""
        if type(other) is not type(self):
            raise StateNotSupported(
                f"rows of a {type(other).__name__} cannot go on below those of a {type(self).__name__}: join states that the same part began"
            )

    def _check(self, batch: int) -> None:
        if batch != self.batch:
            raise ShapeError(
                f"the state was started for {self.batch} batch rows and is asked to go on with {batch}; use state.reorder(rows) to change them"
            )


def places(position: Position, count: int, device: torch.device | str | None = None) -> Tensor:
    """Where `count` tokens stand, the first of them at `position`: (L,), or (B, L) where rows differ."""
    after = torch.arange(count, device=device)
    return after + (position if isinstance(position, int) else torch.tensor(position, device=device)[:, None])


def _each(state: State) -> tuple[int, ...]:
    position = state.position()
    return (position,) * state.batch if isinstance(position, int) else position


class Cache(State):
    """All keys and values so far, or, where the pattern never looks further, the first `sinks` and the last `window`.

    Buffers grow by doubling, so a step costs no copy of the past. Forgotten keys are dropped in bulk: a rolling cache
    holds at most sinks + 2 · window keys, and the pattern hides those that are already too old. While rows began at different
    places no column holds the first keys of all: with sinks nothing is forgotten then.
    """

    def __init__(self, batch: int, reach: tuple[int, int] | None = None):
        super().__init__(batch)
        self.window = None if reach is None else max(reach[0], 1)
        self.sinks = 0 if reach is None else reach[1]
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._held = 0
        self._positions: Tensor | None = None  # of the keys held; None while they are 0, 1, 2 …

    def append(self, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor, Pattern]:
        """Take in new keys and values; return all that are held, and the pattern over them."""
        self._check(len(k_BMHK))
        self._forget()
        new = k_BMHK.shape[1]
        self._k, self._v = self._add(self._k, k_BMHK), self._add(self._v, v_BMHV)
        if self._positions is not None:
            arrived = torch.arange(self.length, self.length + new, device=self._positions.device)
            self._positions = torch.cat([self._positions, arrived])
        self._held += new
        self.length += new
        return self._k[:, : self._held], self._v[:, : self._held], self.over(pattern, new)

    def over(self, pattern: Pattern, queries: int) -> Pattern:
        if self._first is not None:
            pattern = begun(pattern, self._first)
        if self._positions is None:
            return pattern  # the keys held are 0, 1, 2 … and the newest queries stand at their end
        return placed(pattern.fit(self.length, self.length), self._latest(queries), self._positions)

    def bias_over(self, bias: Tensor | Bias | None, queries: int) -> Tensor | Bias | None:
        if self._positions is None or not isinstance(bias, Bias):
            return bias
        return PlacedBias(bias, self._latest(queries), self._positions)

    def _latest(self, queries: int) -> Tensor:
        assert self._positions is not None
        return torch.arange(self.length - queries, self.length, device=self._positions.device)

    def _add(self, held: Tensor | None, new: Tensor) -> Tensor:
        if new.requires_grad or (held is not None and held.requires_grad):  # in training the past is part of the graph
            return new if held is None else torch.cat([held[:, : self._held], new], 1)
        size = 0 if held is None else held.shape[1]
        if held is None or size < self._held + new.shape[1]:
            room = new.new_empty(len(new), max(2 * size, self._held + new.shape[1], 16), *new.shape[2:])
            if held is not None:
                room[:, : self._held] = held[:, : self._held]
            held = room
        held[:, self._held : self._held + new.shape[1]] = new
        return held

    def _moved(self, held: Tensor | None, rows: Tensor, moves: dict[int, int]) -> Tensor | None:
        if held is None or held.requires_grad:
            return None if held is None else held.index_select(0, rows)
        if len(rows) == self.batch and not moves.keys() & moves.values():  # each follows one that stays: no need for new buffers
            held[list(moves), : self._held] = held[list(moves.values()), : self._held]
            return held
        room = held.new_empty(len(rows), *held.shape[1:])
        # what is not yet filled is not copied: half of it on average
        torch.ops.aten.index.Tensor_out(held[:, : self._held], [rows.to(held.device)], out=room[:, : self._held])
        return room

    def _forget(self) -> None:
        if self.window is None or self._k is None or self._v is None or self._held <= self.sinks + 2 * self.window:
            return
        if self.sinks and self._first is not None:
            return
        device = self._k.device
        positions = torch.arange(self._held, device=device) if self._positions is None else self._positions
        kept = torch.cat([torch.arange(self.sinks, device=device), torch.arange(self._held - self.window, self._held, device=device)])
        self._k, self._v, self._positions = self._k[:, kept], self._v[:, kept], positions[kept]
        self._held = len(kept)

    def reorder(self, rows: Tensor) -> Self:
        moves = {to: source for to, source in enumerate(rows.tolist()) if to != source}
        if moves or len(rows) != self.batch:
            self._k, self._v = self._moved(self._k, rows, moves), self._moved(self._v, rows, moves)
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        self._joins(other)
        forgot = self._forgot_between(other)
        held, length = max(self._held, other._held), max(self.length, other.length)
        parts = ((self.batch, self._held), (other.batch, other._held))
        self._k, self._v = _stacked((self._k, other._k), parts, held), _stacked((self._v, other._v), parts, held)
        if not forgot and self._k is not None:  # columns are the newest keys, one behind the other
            self._positions = None if held == length else torch.arange(length - held, length, device=self._k.device)
        self._held = held
        return super().join(other)

    def _joins(self, other: State) -> None:
        super()._joins(other)
        assert isinstance(other, Cache)
        if (self.window, self.sinks) != (other.window, other.sinks):
            raise StateNotSupported("these caches were started under different patterns, and hold different parts of the past")
        if self._forgot_between(other) and not (self.position() == other.position() == self.length and self._held == other._held):
            raise StateNotSupported(
                f"these caches hold the first {self.sinks} keys of their rows, and the rows are of different lengths; join them before "
                "anything was forgotten, or go on with them one by one"
            )

    def _forgot_between(self, other: Cache) -> bool:
        """Whether what is held has a gap: the first keys, and the newest."""
        return self.sinks > 0 and not (self._positions is None and other._positions is None)

    def back(self, count: int) -> Self:
        needed = self.length - count if self.window is None else min(self.length - count, self.sinks + self.window)
        if count > min(_each(self), default=0) or self._held - count < needed:
            raise StateNotSupported(f"{count} tokens cannot be forgotten: a row has read fewer, or what was seen before them is gone")
        self._held -= count
        self.length -= count
        self._positions = None if self._positions is None else self._positions[: self._held]
        return self

    def _begin(self, first: list[int]) -> None:
        before = min(first, default=0)
        if before and self._k is not None and self._v is not None:  # no row looks there any more
            gone = min(before, self._held) if self._positions is None else int((self._positions < before).sum())
            self._k, self._v, self._held = self._k[:, gone:], self._v[:, gone:], self._held - gone
            if self._positions is not None:
                at = self._positions[gone:] - before
                self._positions = None if len(at) == self.length - before else at
        super()._begin(first)

    def detach(self) -> Self:
        self._k = None if self._k is None else self._k.detach()
        self._v = None if self._v is None else self._v.detach()
        return self

    def keys(self) -> tuple[Tensor, Tensor] | None:
        if self._k is None:
            return None
        positions = torch.arange(self._held, device=self._k.device) if self._positions is None else self._positions
        return self._k[:, : self._held], positions

    def values(self) -> Tensor | None:
        """The values still held, v_BMHV."""
        return None if self._v is None else self._v[:, : self._held]

    def places(self) -> Tensor:
        """Where the keys held stand, (1 or B, M): positions as each row counts them since it began, negative before that."""
        held = self.keys()
        assert held is not None, "a cache has places once it has keys"
        return held[1][None] if self._first is None else held[1] - torch.tensor(self._first, device=held[1].device)[:, None]


class Running(State):
    """A past of fixed size: named sums over all tokens so far, (B, …), in float32 or wider, that begin at zero.

    The keys themselves are gone, unless `keep_keys` was called before the first step.
    """

    def __init__(self, batch: int):
        super().__init__(batch)
        self.sums: dict[str, Tensor] = {}
        self._kept: Cache | None = None

    def sum(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The sum called `name`, of `shape` a batch row; of the type and on the device of `like` when it begins."""
        self._check(len(like))
        if name not in self.sums:
            precise = torch.promote_types(like.dtype, torch.float32)
            self.sums[name] = torch.zeros(self.batch, *shape, dtype=precise, device=like.device)
        return self.sums[name]

    def move(self, k_BMHK: Tensor, extra_BMHE: Tensor | None = None, **sums: Tensor) -> None:
        """The tokens of `k_BMHK` were taken in, and these are the sums now."""
        self._check(len(k_BMHK))
        self.sums.update(sums)
        self.length += k_BMHK.shape[1]
        if self._kept is not None:
            self._kept.append(k_BMHK.detach(), (k_BMHK[..., :0] if extra_BMHE is None else extra_BMHE).detach(), full)

    def keep_keys(self) -> None:
        if self._kept is None and self.length:
            raise StateNotSupported(
                f"this {type(self).__name__} has taken in {self.length} tokens and kept sums of them only; begin anew with "
                "attention.start(batch, pattern), and call keep_keys() before the first step"
            )
        self._kept = self._kept or Cache(self.batch)

    def keys(self) -> tuple[Tensor, Tensor] | None:
        return None if self._kept is None else self._kept.keys()

    def extras(self) -> Tensor | None:
        held = None if self._kept is None else self._kept.values()
        return None if held is None or not held.shape[-1] else held

    def over(self, pattern: Pattern, queries: int) -> Pattern:
        return pattern if self._kept is None else self._kept.over(pattern, queries)

    def reorder(self, rows: Tensor) -> Self:
        self.sums = {name: x.index_select(0, rows) for name, x in self.sums.items()}
        if self._kept is not None:
            self._kept.reorder(rows)
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        self.sums = {name: begun_anew(x, rows) for name, x in self.sums.items()}
        if self._kept is not None:
            self._kept.reset(rows)
        return super().reset(rows)

    def join(self, other: Self) -> Self:
        self._joins(other)
        sums, known = (self.sums, other.sums), {**other.sums, **self.sums}
        # a stream that has read nothing has no sums yet: they begin at zero
        self.sums = {
            name: torch.cat(
                [x[name] if name in x else like.new_zeros(n, *like.shape[1:]) for x, n in zip(sums, (self.batch, other.batch), strict=True)]
            )
            for name, like in known.items()
        }
        self._kept = None if self._kept is None or other._kept is None else self._kept.join(other._kept)
        return super().join(other)

    def detach(self) -> Self:
        self.sums = {name: x.detach() for name, x in self.sums.items()}
        return self


class Standing(State):
    """How far the queries of each row have come over a memory that stays: one tensor `at`, (B, …), that begins at zero."""

    grows = False

    def __init__(self, batch: int):
        super().__init__(batch)
        self.at: Tensor | None = None

    def move(self, at: Tensor, steps: int) -> None:
        """The queries went `steps` further, to `at`."""
        self.at = at
        self.length += steps

    def reorder(self, rows: Tensor) -> Self:
        self.at = None if self.at is None else self.at.index_select(0, rows)
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        self.at = None if self.at is None else begun_anew(self.at, rows)
        return super().reset(rows)

    def join(self, other: Self) -> Self:
        self._joins(other)
        known = self.at if self.at is not None else other.at
        if known is not None:
            parts = ((self.at, self.batch), (other.at, other.batch))
            self.at = torch.cat([known.new_zeros(n, *known.shape[1:]) if at is None else at for at, n in parts])
        return super().join(other)

    def detach(self) -> Self:
        self.at = None if self.at is None else self.at.detach()
        return self


def _stacked(held: tuple[Tensor | None, Tensor | None], parts: tuple[tuple[int, int], ...], length: int) -> Tensor | None:
    """What two caches of (rows, keys) hold, one below the other and aligned at the end; with room for more, and zeros before."""
    like = held[0] if held[0] is not None else held[1]
    if like is None:
        return None
    room, row = like.new_zeros(sum(rows for rows, _ in parts), max(2 * length, 16), *like.shape[2:]), 0
    for x, (rows, keys) in zip(held, parts, strict=True):
        if x is not None:
            room[row : row + rows, length - keys : length] = x[:, :keys]
        row += rows
    return room


def begun_anew(x: Tensor, rows: Tensor) -> Tensor:
    """The same with zeros in the rows that begin anew."""
    begun = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    begun[rows] = True
    return x.masked_fill(begun.view(-1, *[1] * (x.dim() - 1)), 0)


def running(state: State) -> Running:
    """The state, if it is one that sums up the past."""
    if not isinstance(state, Running):
        raise StateNotSupported(
            f"this mechanism goes on from a Running, not from a {type(state).__name__}; begin with attention.start(batch, pattern)"
        )
    return state


def standing(state: State, batch: int) -> Standing:
    """The state, if it is one that counts how far the queries have come."""
    if not isinstance(state, Standing):
        raise StateNotSupported(
            f"this mechanism goes on from a Standing, not from a {type(state).__name__}; begin with attention.start(batch), "
            "then give all keys and values at every step"
        )
    state._check(batch)
    return state


def remembered(
    state: State, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, bias: Tensor | Bias | None
) -> tuple[Tensor, Tensor, Pattern, Tensor | Bias | None]:
    """New keys and values put behind those a cache holds, with the pattern and the bias over all of them."""
    if not isinstance(state, Cache):
        raise StateNotSupported(
            f"this mechanism goes on from a Cache, not from a {type(state).__name__}; begin with attention.start(batch, pattern)"
        )
    k_BMHK, v_BMHV, pattern = state.append(k_BMHK, v_BMHV, pattern)
    return k_BMHK, v_BMHV, pattern, state.bias_over(bias, q_BLHK.shape[1])

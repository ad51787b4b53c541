"""Tiles done together: several of one shape in one call.

Tiles that follow each other at even distances, as those of a window do, are views into the same memory: stacked along
the batch axis they cost no copy and one call instead of many. causal & window(128), 8 heads of 64, AVX2, two threads:
forward of 8,192 tokens 65 ms tile by tile (64 rows), 48 ms in runs (32 rows); forward + backward of 4,096 tokens 79 and
66 ms.

A kernel call is efficient from some eight (batch, head) pairs on. Where a group has fewer (one head of a pattern that
differs by head, one row of a padded batch), other tiles of equal shape are copied together. BigBird with random blocks of
its own for each of 8 heads of 64, 4,096 tokens, forward + backward, AVX2, two threads: 640 ms one tile at a time, 392 with
16 pairs a call, 295 with each head's rows lying together, 272 when what all heads see is done at once and keys are copied
by the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._plan import Group, Plan, Tile, follows, shape, width

RUN = 1536  # keys all tiles of a call have together where they are views: their gradients are buffers that should stay in cache
LONG = 10240  # the same where there are no gradients to hold
ENOUGH = 8  # (batch, head) pairs that keep a call efficient without copying tiles together
PAIRS = 16  # pairs a call has where tiles are copied together
KEYS = 8192  # or as many as have this many keys in all
BLOCK = 64  # positions that are copied as one where they lie together


@dataclass(frozen=True, slots=True)
class Steps:
    """`count` runs of `size` positions, each `step` further than the one before; they may overlap."""

    first: int
    step: int
    size: int
    count: int

    def view(self, x: Tensor) -> Tensor:
        """(1, length, …) → (count, size, …), without a copy."""
        along, rest = x.stride()[1], x.stride()[2:]
        shape, strides = (self.count, self.size, *x.shape[2:]), (self.step * along, along, *rest)
        return x.as_strided(shape, strides, x.storage_offset() + self.first * along)

    def add(self, whole: Tensor, part: Tensor) -> None:
        """Add (count, size, …) to where the runs lie; runs that overlap take turns."""
        turns = -(-self.size // self.step)
        for turn in range(min(turns, self.count)):
            mine = Steps(self.first + turn * self.step, turns * self.step, self.size, -(-(self.count - turn) // turns))
            mine.view(whole).add_(part[turn::turns])


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whole blocks of BLOCK positions, by number: copied block by block, not row by row."""

    numbers: Tensor

    def take(self, x: Tensor) -> Tensor:
        if not x.is_contiguous() and x.transpose(1, 2).is_contiguous():  # one head after the other; index_select would copy all first
            x = x.transpose(1, 2).unflatten(2, (-1, BLOCK)).index_select(2, self.numbers.to(x.device))
            return x.flatten(2, 3).transpose(1, 2)
        return x.unflatten(1, (-1, BLOCK)).index_select(1, self.numbers.to(x.device)).flatten(1, 2)  # type: ignore[no-any-return]

    def put(self, whole: Tensor, part: Tensor) -> None:
        whole.unflatten(1, (-1, BLOCK)).index_copy_(1, self.numbers.to(whole.device), part.unflatten(1, (-1, BLOCK)).to(whole.dtype))

    def add(self, whole: Tensor, part: Tensor) -> None:
        whole.unflatten(1, (-1, BLOCK)).index_add_(1, self.numbers.to(whole.device), part.unflatten(1, (-1, BLOCK)).to(whole.dtype))


Index = slice | Tensor | Steps | Blocks


@dataclass(eq=False, slots=True)
class Stack:
    """One tile, or several of the same shape that share no row."""

    tiles: list[Tile]
    rows: Index
    columns: Index

    def take_rows(self, x: Tensor) -> Tensor:
        """(B, L, H, …) → (B · tiles, H, rows of a tile, …)."""
        return _fold(x, self.rows, len(self.tiles))

    def take_columns(self, x: Tensor, heads: int) -> Tensor:
        """The same for keys and values; heads that are shared are repeated."""
        x = _fold(x, self.columns, len(self.tiles))
        return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)

    def put_rows(self, whole: Tensor, part: Tensor) -> None:
        """The inverse of `take_rows`."""
        if isinstance(self.rows, Steps):
            self.rows.view(whole).copy_(part.transpose(1, 2))
            return
        part = _unfold(part, len(self.tiles))
        if isinstance(self.rows, slice):
            whole[:, self.rows] = part
        elif isinstance(self.rows, Blocks):
            self.rows.put(whole, part)
        else:
            whole.index_copy_(1, self.rows.to(whole.device), part.to(whole.dtype))

    def add_rows(self, whole: Tensor, part: Tensor) -> None:
        _add(whole, self.rows, part, len(self.tiles))

    def add_columns(self, whole: Tensor, part: Tensor) -> None:
        """Gradients back to keys and values; shared heads gather those of all that read them."""
        if part.shape[1] != whole.shape[2]:
            part = part.view(len(part), whole.shape[2], -1, *part.shape[2:]).sum(2)
        _add(whole, self.columns, part, len(self.tiles))

    def mask(self, plan: Plan, group: Group, dtype: torch.dtype, device: torch.device, batch: int) -> Tensor | None:
        """What the pattern adds to the scores, (1 or B · tiles, 1 or H, rows, columns)."""
        masks = [plan.mask(group, tile, dtype, device) for tile in self.tiles]
        return masks[0] if all(mask is masks[0] for mask in masks) else self.join([m for m in masks if m is not None], batch)

    def hollow(self, biased: bool) -> bool:
        """Whether some row may see nothing."""
        return any(tile.partial and tile.hollow for tile in self.tiles) or biased

    def join(self, parts: list[Tensor], batch: int) -> Tensor:
        """What was made for single tiles, (1 or B, 1 or H, rows, columns) each, in the order of `take_rows`."""
        if len(parts) == 1:
            return parts[0]
        return torch.stack([part.expand(batch, *part.shape[1:]) for part in parts], 1).flatten(0, 1)

    def part(self, x: Tensor, n: int) -> Tensor:
        """The n-th tile's share of something shaped like scores."""
        return x.view(-1, len(self.tiles), *x.shape[1:])[:, n]


def stacks(group: Group, q_BLHK: Tensor, k_BMHK: Tensor, run: int = RUN) -> list[Stack]:
    """The tiles of a group in as few calls as pay; kept, as putting them together takes as long as a call."""
    (B, L, H), M = q_BLHK.shape[:3], k_BMHK.shape[1]
    key = (B, L, H, M, run, torch.get_num_threads())
    if key not in group.calls:
        group.calls[key] = list(_stacks(group, B, L, H, M, run))
    return group.calls[key]


def _stacks(group: Group, batch: int, queries: int, heads: int, keys: int, run: int) -> Iterator[Stack]:
    runs, left = _runs(group.tiles, run) if batch == 1 else ([], group.tiles)
    yield from runs
    pairs, shapes = batch * heads, dict[tuple[object, ...], list[Tile]]()
    for n, tile in enumerate(left):
        shapes.setdefault((*shape(tile), n) if tile.split or pairs >= ENOUGH else shape(tile), []).append(tile)
    for tiles in shapes.values():
        at_once = -(-max(PAIRS, 2 * torch.get_num_threads(), KEYS // width(tiles[0])) // max(pairs, 1))
        for first in range(0, len(tiles), at_once):
            some = tiles[first : first + at_once]
            yield Stack(some, _joined([t.rows for t in some], queries), _joined([t.columns for t in some], keys))


def _joined(parts: Sequence[slice | Tensor], length: int) -> Index:
    """The positions of several tiles as one index, in whole blocks where they are."""
    if len(parts) == 1 and isinstance(parts[0], slice):
        return parts[0]
    at = torch.cat([torch.arange(part.start, part.stop) if isinstance(part, slice) else part for part in parts])
    if length % BLOCK or len(at) % BLOCK or (at[::BLOCK] % BLOCK).any() or (at.view(-1, BLOCK).diff() != 1).any():
        return at
    return Blocks(at[::BLOCK] // BLOCK)


def _runs(tiles: list[Tile], keys: int) -> tuple[list[Stack], list[Tile]]:
    """Tiles that follow each other at even distances, put together; and the others."""
    runs: list[list[Tile]] = []
    for tile in tiles:
        if runs and follows(runs[-1][-1], tile) and (len(runs[-1]) + 1) * width(tile) <= keys:
            runs[-1].append(tile)
        else:
            runs.append([tile])
    found = []
    for run in runs:
        if len(run) > 1:
            rows, columns = run[0].rows, run[0].columns
            assert isinstance(columns, slice)
            step = rows.stop - rows.start
            found.append(Stack(run, Steps(rows.start, step, step, len(run)), Steps(columns.start, step, width(run[0]), len(run))))
    return found, [run[0] for run in runs if len(run) == 1]


def _fold(x: Tensor, index: Index, tiles: int) -> Tensor:
    if isinstance(index, Steps):
        return index.view(x).transpose(1, 2)
    x = x[:, index] if isinstance(index, slice) else index.take(x) if isinstance(index, Blocks) else x.index_select(1, index.to(x.device))
    if tiles > 1:
        x = x.view(len(x), tiles, -1, *x.shape[2:]).flatten(0, 1)
    return x.transpose(1, 2)


def _unfold(part: Tensor, tiles: int) -> Tensor:
    part = part.transpose(1, 2)
    return part if tiles == 1 else part.reshape(-1, tiles * part.shape[1], *part.shape[2:])


def _add(whole: Tensor, index: Index, part: Tensor, tiles: int) -> None:
    if isinstance(index, Steps):
        index.add(whole, part.transpose(1, 2))
    elif isinstance(index, Blocks):
        index.add(whole, _unfold(part, tiles))
    elif isinstance(index, slice):
        whole[:, index] += _unfold(part, tiles)
    else:
        whole.index_add_(1, index.to(whole.device), _unfold(part, tiles).to(whole.dtype))

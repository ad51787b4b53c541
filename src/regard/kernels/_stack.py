"""Tiles done together: several of one shape in one call, so that a pattern for single heads keeps all cores busy too.

A kernel call is efficient from some eight (batch, head) pairs on. Where a group has fewer (one head of a
pattern that differs by head, one row of a padded batch), tiles of equal shape are stacked along the batch axis.
BigBird with random blocks of its own for each of 8 heads of 64, 4,096 tokens, forward + backward, AVX2, two threads:
640 ms one tile at a time, 460 with 4 pairs a call, 427 with 8, 392 with 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._plan import Group, Plan, Tile, width

ENOUGH = 8  # (batch, head) pairs that keep a call efficient without copying tiles together
PAIRS = 16  # pairs a call has where tiles are copied together


@dataclass(eq=False, slots=True)
class Stack:
    """One tile, or several of the same shape that share no row."""

    tiles: list[Tile]
    rows: slice | Tensor
    columns: slice | Tensor

    def take_rows(self, x: Tensor) -> Tensor:
        """(B, L, H, …) → (B · tiles, H, rows of a tile, …)."""
        return _fold(x, self.rows, len(self.tiles))

    def take_columns(self, x: Tensor, heads: int) -> Tensor:
        """The same for keys and values; heads that are shared are repeated."""
        x = _fold(x, self.columns, len(self.tiles))
        return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)

    def put_rows(self, whole: Tensor, part: Tensor) -> None:
        """The inverse of `take_rows`."""
        part = _unfold(part, len(self.tiles))
        if isinstance(self.rows, slice):
            whole[:, self.rows] = part
        else:
            whole.index_copy_(1, self.rows, part.to(whole.dtype))

    def add_rows(self, whole: Tensor, part: Tensor) -> None:
        _add(whole, self.rows, _unfold(part, len(self.tiles)))

    def add_columns(self, whole: Tensor, part: Tensor) -> None:
        """Gradients back to keys and values; shared heads gather those of all that read them."""
        if part.shape[1] != whole.shape[2]:
            part = part.view(len(part), whole.shape[2], -1, *part.shape[2:]).sum(2)
        _add(whole, self.columns, _unfold(part, len(self.tiles)))

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


def stacks(group: Group, pairs: int) -> Iterator[Stack]:
    """The tiles of a group: one at a time, as views, where it has pairs enough; else as many as make PAIRS."""
    at_once = 1 if pairs >= ENOUGH else -(-max(PAIRS, 2 * torch.get_num_threads()) // max(pairs, 1))
    if at_once == 1:
        yield from (Stack([tile], tile.rows, tile.columns) for tile in group.tiles)
        return
    shapes: dict[tuple[object, ...], list[Tile]] = {}
    for n, tile in enumerate(group.tiles):
        shape = (tile.rows.stop - tile.rows.start, width(tile), tile.partial, id(tile.mask))
        shapes.setdefault((*shape, n) if tile.split else shape, []).append(tile)
    for tiles in shapes.values():
        for first in range(0, len(tiles), at_once):
            some = tiles[first : first + at_once]
            if len(some) == 1:
                yield Stack(some, some[0].rows, some[0].columns)
            else:
                yield Stack(some, *(torch.cat([_index(getattr(t, axis)) for t in some]) for axis in ("rows", "columns")))


def _index(some: slice | Tensor) -> Tensor:
    return torch.arange(some.start, some.stop) if isinstance(some, slice) else some


def _fold(x: Tensor, index: slice | Tensor, tiles: int) -> Tensor:
    x = x[:, index] if isinstance(index, slice) else x.index_select(1, index.to(x.device))
    if tiles > 1:
        x = x.view(len(x), tiles, -1, *x.shape[2:]).flatten(0, 1)
    return x.transpose(1, 2)


def _unfold(part: Tensor, tiles: int) -> Tensor:
    part = part.transpose(1, 2)
    return part if tiles == 1 else part.reshape(-1, tiles * part.shape[1], *part.shape[2:])


def _add(whole: Tensor, index: slice | Tensor, part: Tensor) -> None:
    if isinstance(index, slice):
        whole[:, index] += part
    else:
        whole.index_add_(1, index.to(whole.device), part.to(whole.dtype))

"""From a pattern to work: which rows look at which columns, in tiles that leave out what no one may see.

A plan is a list of tiles. Every tile is a run of query rows with the keys that any of them may see (a slice, or a list
of indices where they do not lie together) and the mask inside the tile, or none where all pairs are allowed. Rows that
see nothing are in no tile. Heads and batch rows whose block summaries differ get plans of their own, so that time
follows the pairs that are really live; but what all heads see is done for all of them at once, and merged with the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..patterns import Pattern, Span, spans

ROWS = (128, 64, 32)  # query rows a tile, whichever makes the cheaper plan
CALL = 8192  # a tile costs its pairs and as much again as this many, so 64 and 128 rows come out nearly equal for window(128), as measured
NEXT = 2000  # a tile that goes in one call with the one before it: so 32 rows win for windows
COLUMNS = 64  # how finely the summary looks at keys; single dead columns at the ends of a tile are cut off afterwards
WIDEST = 2048  # keys a tile: more are split, so that one tile of scores stays small
FINE = 8  # rows a tile where a block holds a few rows that see far more than their neighbours (global queries)
KEPT_MASKS = 64 << 20  # bytes of masks one kept plan may hold; beyond it masks are made anew each time


@dataclass(eq=False, slots=True)
class Tile:
    """Some rows looking at some columns. `mask` is added to the scores (0 or −inf), or None if all pairs are allowed."""

    rows: slice
    columns: slice | Tensor
    partial: bool
    split: bool = False  # these rows have more keys than one tile takes, and the next tile may go on with them
    mask: Tensor | None = None
    hollow: bool = True  # some row may see nothing here; known once the mask is kept


@dataclass(eq=False, slots=True)
class Group:
    """Neighbouring batch rows and heads that share their tiles; None stands for all."""

    batch: slice | None
    heads: slice | None
    tiles: list[Tile]
    later: bool = False  # a group before this one may have had the same rows with other keys
    calls: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)  # the tiles as `stacks` puts them together


@dataclass(eq=False, slots=True)
class Plan:
    """All the work of one call."""

    pattern: Pattern
    start: int  # position of the first query
    groups: list[Group]
    live: int  # pairs visited, over all (batch, head) that the pattern tells apart
    total: int  # pairs there are
    covered: bool = True  # every row is in exactly one tile

    def positions(self, tile: Tile, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of the rows and of the columns of a tile."""
        i = torch.arange(tile.rows.start, tile.rows.stop, device=device) + self.start
        if isinstance(tile.columns, slice):
            return i, torch.arange(tile.columns.start, tile.columns.stop, device=device)
        return i, tile.columns.to(device)

    def mask(self, group: Group, tile: Tile, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """What to add to the scores of a tile: 0 or −inf, (B or 1, H or 1, rows, columns)."""
        if not tile.partial:
            return None
        if tile.mask is not None:
            return tile.mask.to(device, dtype)
        i, j = self.positions(tile, device)
        return additive(self.allowed(group, i, j), dtype)

    def allowed(self, group: Group, i: Tensor, j: Tensor) -> Tensor:
        b = _some(group.batch, self.pattern.batch).to(i.device)[:, None, None, None]
        h = _some(group.heads, self.pattern.heads).to(i.device)[:, None, None]
        mask = self.pattern.allows(b, h, i[:, None], j)
        mask = mask[(None,) * (4 - mask.dim())]
        return mask.expand(*mask.shape[:-2], len(i), len(j))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Booleans as something to add to scores."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def plan(pattern: Pattern, queries: int, keys: int, share: int = 1) -> Plan:
    """The tiles of `pattern` for this many queries and keys; `share` query heads read one key head. Static plans are kept."""
    return _kept(pattern, queries, keys, share) if pattern.static else _make(pattern, queries, keys, share)


@lru_cache(maxsize=64)
def _kept(pattern: Pattern, queries: int, keys: int, share: int) -> Plan:
    made = _make(pattern, queries, keys, share)
    tiles = [(group, tile) for group in made.groups for tile in group.tiles if tile.partial]
    if sum(4 * (t.rows.stop - t.rows.start) * width(t) * made.pattern.heads for _, t in tiles) > 16 * KEPT_MASKS:
        return made
    # Away from the borders tiles mostly have the same mask: equal ones are stored once, so little is kept in all.
    known: dict[bytes, Tensor] = {}
    for group, tile in tiles:
        mask = made.allowed(group, *made.positions(tile, torch.device("cpu")))
        content = bytes(mask.shape) if not mask.numel() else str(tuple(mask.shape)).encode() + mask.numpy().tobytes()
        if sum(m.nbytes for m in known.values()) < KEPT_MASKS:
            known.setdefault(content, additive(mask, torch.float32))
        tile.mask, tile.hollow = known.get(content), not bool(mask.any(-1).all())
    return made


def width(tile: Tile) -> int:
    """How many keys a tile has."""
    return tile.columns.stop - tile.columns.start if isinstance(tile.columns, slice) else len(tile.columns)


def _some(chosen: slice | None, size: int) -> Tensor:
    return torch.arange(size) if chosen is None or size == 1 else torch.arange(chosen.start, chosen.stop)


def _make(pattern: Pattern, queries: int, keys: int, share: int) -> Plan:
    fitted = pattern.fit(queries, keys)
    made = Plan(fitted, keys - queries, [], 0, fitted.batch * fitted.heads * queries * keys, covered=keys > 0)
    if queries == 0 or keys == 0:
        return made
    summary = fitted.blocks(queries, keys, min(ROWS), COLUMNS).cpu()
    for batch in _alike(summary, 1):
        some = summary if batch is None else summary[batch]
        runs = _alike(some.transpose(0, 1), share)
        common = ((some > 0).all(1) if len(runs) > 1 else some[:, 0] < 0).all(0)
        if 2 * common.sum() * some[:, :, 0, 0].numel() >= (some > 0).sum():
            made.groups += _shared(made, batch, runs, queries, keys)
            made.covered = False
            continue
        for heads in runs:
            group = Group(batch, heads, [])
            cuts = (spans(queries, rows) for rows in ROWS)
            group.tiles = min((list(_tiles(made, group, rows, keys)) for rows in cuts), key=_cost)
            made.groups.append(group)
            made.covered &= sum(t.rows.stop - t.rows.start for t in group.tiles) == queries and not any(t.split for t in group.tiles)
    for group in made.groups:
        many = len(_some(group.batch, fitted.batch)) * len(_some(group.heads, fitted.heads))
        made.live += many * sum((t.rows.stop - t.rows.start) * width(t) for t in group.tiles)
    return made


def _shared(made: Plan, batch: slice | None, runs: list[slice] | list[None], queries: int, keys: int) -> list[Group]:
    """What all heads see, and then the rest of each; whichever rows a tile make it cheapest."""
    plans = []
    for rows in (spans(queries, size) for size in ROWS):
        every = Group(batch, None, [])
        common = _look(made, every, rows, keys, together=False) > 0
        every.tiles = list(_tiles(made, every, rows, keys, common))
        groups = [every, *(Group(batch, heads, [], later=True) for heads in runs)]
        for group in groups[1:]:
            group.tiles = list(_tiles(made, group, rows, keys, ~common))
        plans.append((made.pattern.heads * _cost(every.tiles) + sum(_cost(group.tiles) for group in groups[1:]), groups))
    return min(plans, key=lambda plan: plan[0])[1]


def _cost(tiles: list[Tile]) -> float:
    """Pairs visited, a tenth more where a mask is added, and what starting the tiles costs besides."""
    pairs = sum((t.rows.stop - t.rows.start) * width(t) * (1.1 if t.partial else 1.0) for t in tiles)
    return float(pairs + sum(NEXT if follows(one, two) else CALL for one, two in pairwise([tiles[0], *tiles]))) if tiles else 0.0


def follows(one: Tile, two: Tile) -> bool:
    """Whether two tiles have the same shape, and the second lies as much further along the keys as along the rows."""
    if one.split or two.split or not (isinstance(one.columns, slice) and isinstance(two.columns, slice)) or shape(one) != shape(two):
        return False
    return bool(two.rows.start == one.rows.stop and two.columns.start - one.columns.start == one.rows.stop - one.rows.start)


def shape(tile: Tile) -> tuple[object, ...]:
    """What tiles done in one call must have in common."""
    return tile.rows.stop - tile.rows.start, width(tile), tile.partial, id(tile.mask)


def _alike(summary: Tensor, share: int) -> list[slice] | list[None]:
    """Runs of neighbours along the first axis with equal summaries; [None] if all are equal.

    A run is as long as it can be, but either one head or whole sets of the `share` heads that read the same keys.
    """
    size = len(summary)
    if size == 1 or bool((summary == summary[:1]).all()):
        return [None]
    runs: list[slice] = []
    for n in range(size):
        same = runs and bool((summary[n] == summary[n - 1]).all()) and (share == 1 or n % share or runs[-1].start % share == 0)
        runs = [*runs[:-1], slice(runs[-1].start, n + 1)] if same else [*runs, slice(n, n + 1)]
    whole = [run for run in runs if (run.start % share, run.stop % share) == (0, 0)]
    single = [slice(n, n + 1) for run in runs if run not in whole for n in range(run.start, run.stop)]
    return whole + single


def _tiles(made: Plan, group: Group, rows: Span, keys: int, chosen: Tensor | None = None) -> Iterator[Tile]:
    """The tiles of the given runs of rows, over all blocks of keys or those chosen for each run."""
    summary = _look(made, group, rows, keys)
    if chosen is not None:
        summary = summary * chosen
    counts = (summary > 0).sum(-1)
    usual = max(int(counts.median()), 1)
    for n, (first, last, count, blocks) in enumerate(zip(rows.first.tolist(), rows.last.tolist(), counts.tolist(), summary, strict=True)):
        tiles = list(_cut(made, group, slice(first, last + 1), blocks, keys)) if count else []
        if count > 4 * usual and last - first >= 2 * FINE:
            # perhaps a few rows see far more than the rest: look closer, so that only they pay for it
            finer = _tiles(made, group, spans(last + 1 - first, FINE, first), keys, None if chosen is None else chosen[n])
            tiles = min(tiles, list(finer), key=_cost)
        yield from tiles


def _look(made: Plan, group: Group, rows: Span, keys: int, together: bool = True) -> Tensor:
    """The block summary of some runs of rows that is true for all of a group: alike in blocks need not be alike in finer ones.

    Not `together`: live are only the blocks in which every batch row and head has something to see.
    """
    b = _some(group.batch, made.pattern.batch)[:, None, None, None]
    h = _some(group.heads, made.pattern.heads)[:, None, None]
    i = Span(*((x + made.start)[:, None] for x in rows))
    some, every = made.pattern.bounds(b, h, i, spans(keys, COLUMNS))
    shape = (len(b), len(h), len(rows.first), -(-keys // COLUMNS))
    some, every = some.expand(shape).flatten(0, 1), every.expand(shape).flatten(0, 1).all(0)
    some = some.any(0) if together else some.all(0)
    return (some.to(torch.int8) + (some & every).to(torch.int8)).cpu()


def _cut(made: Plan, group: Group, rows: slice, blocks: Tensor, keys: int) -> Iterator[Tile]:
    """One run of rows and its live blocks of keys, as one tile or, where the keys are many, several."""
    live = (blocks > 0).nonzero()[:, 0]
    columns = (live[:, None] * COLUMNS + torch.arange(COLUMNS)).flatten()
    columns = columns[columns < keys]
    partial = bool((blocks[live] == 1).any())
    if partial and len(columns) <= 4 * WIDEST:  # leave out single columns that no row of the tile sees
        i = torch.arange(rows.start, rows.stop) + made.start
        columns = columns[made.allowed(group, i, columns).flatten(0, 2).any(0)]
    for piece in columns.split(WIDEST) if len(columns) else ():
        run = int(piece[-1] - piece[0]) + 1 == len(piece)
        yield Tile(rows, slice(int(piece[0]), int(piece[-1]) + 1) if run else piece, partial, len(columns) > WIDEST)

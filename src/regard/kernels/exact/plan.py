"""Plans, from a pattern to work: which rows attend to which columns, in tiles that leave out what is excluded for all.

A plan is a list of tiles. Every tile is a run of query rows with the keys that any of them may attend to (a slice, or a list of
indices where they are not contiguous) and the mask inside the tile, or none where all pairs are allowed. Rows that attend to nothing
are in no tile. Heads and batch rows whose block summaries differ get tiles of their own, so that the time follows the pairs that are
allowed; but blocks that all heads attend to are computed for all of them at once, and merged with the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...patterns import Full, Pattern, Span, block_summary, is_static, padding_of, row_bounds, spans
from .contents import Kept
from .paths import forced

ROWS = (128, 64, 32)  # query rows per tile, whichever makes the cheaper plan
CALL = 8192  # the overhead of a tile, in pairs: 64 and 128 rows come out nearly equal for window(128), as measured
NEXT = 2000  # the overhead of a tile that shares a call with the one before it: 32 rows win for windows
COLUMNS = 64  # key block size of the summary; single excluded columns of a tile are dropped afterwards
WIDEST = 2048  # keys per tile: more are split, so that the scores of one tile stay small
FINE = 8  # rows per tile where a block holds a few rows that attend to far more than their neighbours (global queries)
KEPT_MASKS = 64 << 20  # bytes of masks that a cached plan may hold; beyond that, masks are computed at each call
BATCH_MASKS = 16 << 20  # the same for a plan that belongs to a batch
WASTE = 1.25  # batch rows share tiles if these are at most this many times the pairs that each needs by itself
DENSE_PAIRS = 256 * 256  # up to this many (query, key) pairs a whole mask is cheaper than a plan


@dataclass(eq=False, slots=True)
class Tile:
    """Some rows attending to some columns. `mask` is added to the scores (0 or −inf), or None if all pairs are allowed."""

    rows: slice
    columns: slice | Tensor
    partial: bool
    split: bool = False  # these rows have more keys than one tile takes; the next tile may have the rest
    mask: Tensor | None = None
    has_empty_rows: bool = True  # some row may attend to nothing here; exact once the mask is cached


@dataclass(eq=False, slots=True)
class Group:
    """Neighbouring batch rows and heads that share their tiles; None stands for all."""

    batch: slice | None
    heads: slice | None
    tiles: list[Tile]
    later: bool = False  # a group before this one may have had the same rows with other keys
    calls: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)  # see `group_stacks`


@dataclass(eq=False, slots=True)
class Plan:
    """All the work of one call."""

    pattern: Pattern
    start: int  # position of the first query
    groups: list[Group]
    live: int  # pairs visited, over all (batch, head) that the pattern distinguishes
    total: int  # all pairs, allowed or not
    covered: bool = True  # every row is in exactly one tile
    room: int = 0  # bytes of masks that may still be kept with the stacks of its tiles

    def positions(self, tile: Tile, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of the rows and of the columns of a tile."""
        i = torch.arange(tile.rows.start, tile.rows.stop, device=device) + self.start
        if isinstance(tile.columns, slice):
            return i, torch.arange(tile.columns.start, tile.columns.stop, device=device)
        return i, tile.columns.to(device)

    def mask(self, group: Group, tile: Tile, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Return the mask to add to the scores of a tile: 0 or −inf, (B or 1, H or 1, rows, columns)."""
        if not tile.partial:
            return None
        if tile.mask is not None:
            return tile.mask.to(device, dtype)
        i, j = self.positions(tile, device)
        return additive(self.allowed(group, i, j), dtype)

    def allowed(self, group: Group, i: Tensor, j: Tensor) -> Tensor:
        b = _indices(group.batch, self.pattern.batch).to(i.device)[:, None, None, None]
        h = _indices(group.heads, self.pattern.heads).to(i.device)[:, None, None]
        mask = self.pattern.allows(b, h, i[:, None], j)
        mask = mask[(None,) * (4 - mask.dim())]
        return mask.expand(*mask.shape[:-2], len(i), len(j))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as an additive one: 0 where True, −inf where False."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def make_plan(pattern: Pattern, queries: int, keys: int, share: int = 1) -> Plan:
    """The tiles of `pattern` for this many queries and keys; `share` query heads read one key head. Plans are kept: of patterns that are made
    from tensors, those of the last batches.
    """
    if is_static(pattern):
        return _cached_plan(pattern, queries, keys, share)
    return _OF_BATCHES.get(pattern, (queries, keys, share), lambda: _batch_plan(pattern, queries, keys, share))


def whole_plan(pattern: Pattern, queries: int, keys: int) -> Plan:
    """One tile of everything: cheaper than a plan where there are few pairs."""
    if is_static(pattern):
        return _cached_whole(pattern, queries, keys)
    return _OF_BATCHES.get(pattern, (queries, keys), lambda: _masked(_whole(pattern, queries, keys)))


def _whole(pattern: Pattern, queries: int, keys: int) -> Plan:
    fitted, total = pattern.fit(queries, keys), queries * keys
    group = Group(None, None, [Tile(slice(0, queries), slice(0, keys), partial=not isinstance(fitted, Full))])
    pairs = fitted.batch * fitted.heads * total
    return Plan(fitted, keys - queries, [group] if total else [], pairs, pairs, covered=total > 0)


@lru_cache(maxsize=8)
def _cached_whole(pattern: Pattern, queries: int, keys: int) -> Plan:
    return _masked(_whole(pattern, queries, keys))


def _masked(plan: Plan) -> Plan:
    """The plan with the masks of its tiles."""
    for group in plan.groups:
        for tile in group.tiles:
            tile.mask = plan.mask(group, tile, torch.float32, torch.device("cpu"))
    return plan


_OF_BATCHES = Kept[Plan](8)


def _batch_plan(pattern: Pattern, queries: int, keys: int, share: int) -> Plan:
    """Plan of a pattern made from tensors. One without tensors, within a range of keys per batch row, takes over the tiles of that pattern."""
    found = padding_of(pattern, keys) if queries and keys else None
    if found is None or not is_static(found.rule) or found.rule.batch > 1:
        plan = _build(pattern, queries, keys, share)
        plan.room = BATCH_MASKS
        return plan
    fitted = pattern.fit(queries, keys)
    plan = Plan(fitted, keys - queries, [], 0, fitted.batch * fitted.heads * queries * keys, room=BATCH_MASKS)
    tiles = _cached_plan(found.rule, queries, keys, share)
    size = (found.stop_B - found.first_B).clamp(min=0)
    together = len(size) == 1 or int(found.stop_B.max() - found.first_B.min()) * len(size) <= WASTE * int(size.sum())
    for batch in [None] if together else [slice(b, b + 1) for b in range(len(size))]:
        some = slice(None) if batch is None else batch
        first_B, stop_B = found.first_B[some], found.stop_B[some]
        hull, core = (int(first_B.min()), int(stop_B.max())), (int(first_B.max()), int(stop_B.min()))
        for group in tiles.groups:
            mine = [one for tile in group.tiles if (one := _within(tile, hull, core)) is not None]
            plan.groups.append(Group(batch, group.heads, mine, group.later))
            plan.covered &= tiles.covered and len(mine) == len(group.tiles)
            pairs = sum((t.rows.stop - t.rows.start) * width(t) for t in mine)
            plan.live += pairs * (len(size) if batch is None else 1) * len(_indices(group.heads, fitted.heads))
    return plan


def _within(tile: Tile, hull: tuple[int, int], core: tuple[int, int]) -> Tile | None:
    """The part of a tile whose columns are in the `hull`, masked where they are not in the `core`, which all batch rows have."""
    if isinstance(tile.columns, slice):
        first, stop = tile.columns.start, tile.columns.stop
    else:
        first, stop = int(tile.columns[0]), int(tile.columns[-1]) + 1
    if core[0] <= first and stop <= core[1]:
        return tile
    low, high = max(first, hull[0]), min(stop, hull[1])
    if low >= high:
        return None
    masked = tile.partial or low < core[0] or high > core[1]
    if isinstance(tile.columns, slice):
        return Tile(tile.rows, slice(low, high), masked, tile.split)
    columns = tile.columns[(tile.columns >= low) & (tile.columns < high)]
    return Tile(tile.rows, columns, masked, tile.split) if len(columns) else None


@lru_cache(maxsize=64)
def _cached_plan(pattern: Pattern, queries: int, keys: int, share: int) -> Plan:
    plan = _build(pattern, queries, keys, share)
    tiles = [(group, tile) for group in plan.groups for tile in group.tiles if tile.partial]
    if sum(4 * (t.rows.stop - t.rows.start) * width(t) * plan.pattern.heads for _, t in tiles) > 16 * KEPT_MASKS:
        return plan
    # Away from the borders most tiles have the same mask: equal ones are stored once.
    known: dict[bytes, Tensor] = {}
    for group, tile in tiles:
        mask = plan.allowed(group, *plan.positions(tile, torch.device("cpu")))
        content = bytes(mask.shape) if not mask.numel() else str(tuple(mask.shape)).encode() + mask.numpy().tobytes()
        if sum(m.nbytes for m in known.values()) < KEPT_MASKS:
            known.setdefault(content, additive(mask, torch.float32))
        tile.mask, tile.has_empty_rows = known.get(content), not bool(mask.any(-1).all())
    return plan


def width(tile: Tile) -> int:
    """The number of keys of a tile."""
    return tile.columns.stop - tile.columns.start if isinstance(tile.columns, slice) else len(tile.columns)


def _indices(chosen: slice | None, size: int) -> Tensor:
    return torch.arange(size) if chosen is None or size == 1 else torch.arange(chosen.start, chosen.stop)


def _build(pattern: Pattern, queries: int, keys: int, share: int) -> Plan:
    fitted = pattern.fit(queries, keys)
    plan = Plan(fitted, keys - queries, [], 0, fitted.batch * fitted.heads * queries * keys, covered=keys > 0)
    if queries == 0 or keys == 0:
        return plan
    summary = block_summary(fitted, queries, keys, min(ROWS), COLUMNS).cpu()
    for batch in _equal_runs(summary, 1):
        some = summary if batch is None else summary[batch]
        runs = _equal_runs(some.transpose(0, 1), share)
        common = ((some > 0).all(1) if len(runs) > 1 else some[:, 0] < 0).all(0)
        if 2 * common.sum() * some[:, :, 0, 0].numel() >= (some > 0).sum():
            plan.groups += _shared_first(plan, batch, runs, some, queries, keys)
            plan.covered = False
            continue
        for heads in runs:
            group = Group(batch, heads, [])
            group.tiles = _cheapest(plan, group, some[0, 0 if heads is None else heads.start], queries, keys)
            plan.groups.append(group)
            plan.covered &= sum(t.rows.stop - t.rows.start for t in group.tiles) == queries and not any(t.split for t in group.tiles)
    for group in plan.groups:
        many = len(_indices(group.batch, fitted.batch)) * len(_indices(group.heads, fitted.heads))
        plan.live += many * sum((t.rows.stop - t.rows.start) * width(t) for t in group.tiles)
    return plan


def _cheapest(plan: Plan, group: Group, summary: Tensor, queries: int, keys: int) -> list[Tile]:
    """The tiles of a group, from its block summary, with the number of rows per tile that is cheapest.

    A plan that is kept for good is worth cutting three times; for that of a batch the costs are estimated from the blocks.
    """
    sizes = [(size, _merged(summary, size // min(ROWS))) for size in ROWS]
    if not is_static(plan.pattern):
        sizes = [min(sizes, key=lambda one: int((one[1] > 0).sum()) * one[0] * COLUMNS * 1.1 + len(one[1]) * NEXT)]
    return min((list(_row_tiles(plan, group, spans(queries, size), keys, blocks)) for size, blocks in sizes), key=_cost)


def _merged(summary: Tensor, rows: int) -> Tensor:
    """A summary with neighbouring runs of rows as one: full if all are, empty if all are."""
    left = -summary.shape[-2] % rows
    last = summary[..., -1:, :].expand(*summary.shape[:-2], left, summary.shape[-1])
    parts = torch.cat([summary, last], -2).unflatten(-2, (-1, rows))
    return torch.where((parts == 2).all(-2), 2, (parts > 0).any(-2).to(torch.int8)).to(torch.int8)


def _shared_first(plan: Plan, batch: slice | None, runs: list[slice] | list[None], summary: Tensor, queries: int, keys: int) -> list[Group]:
    """The blocks that all heads attend to, then the rest of each head; with the number of rows per tile that is cheapest."""
    plans = []
    for size in ROWS:
        blocks, rows = _merged(summary, size // min(ROWS)), spans(queries, size)
        common = (blocks > 0).flatten(0, 1).all(0)
        whole = (blocks == 2).flatten(0, 1).all(0)
        every = Group(batch, None, [])
        every.tiles = list(_row_tiles(plan, every, rows, keys, (1 + whole.to(torch.int8)) * common))
        groups = [every, *(Group(batch, heads, [], later=True) for heads in runs)]
        for group in groups[1:]:
            mine = blocks[0, 0 if group.heads is None else group.heads.start]
            group.tiles = list(_row_tiles(plan, group, rows, keys, mine * ~common))
        plans.append((plan.pattern.heads * _cost(every.tiles) + sum(_cost(group.tiles) for group in groups[1:]), groups))
    return min(plans, key=lambda priced: priced[0])[1]


def _cost(tiles: list[Tile]) -> float:
    """Pairs visited, a tenth more where a mask is added, plus the overhead of starting the tiles."""
    pairs = sum((t.rows.stop - t.rows.start) * width(t) * (1.1 if t.partial else 1.0) for t in tiles)
    return float(pairs + sum(NEXT if follows(one, two) else CALL for one, two in pairwise([tiles[0], *tiles]))) if tiles else 0.0


def follows(one: Tile, two: Tile) -> bool:
    """Return whether two tiles have the same shape, and the second is shifted by as many keys as rows."""
    if one.split or two.split or not (isinstance(one.columns, slice) and isinstance(two.columns, slice)) or shape(one) != shape(two):
        return False
    return bool(two.rows.start == one.rows.stop and two.columns.start - one.columns.start == one.rows.stop - one.rows.start)


def shape(tile: Tile) -> tuple[object, ...]:
    """Properties that tiles which share a call must have in common."""
    return tile.rows.stop - tile.rows.start, width(tile), tile.partial, id(tile.mask)


def _equal_runs(summary: Tensor, share: int) -> list[slice] | list[None]:
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


def _row_tiles(plan: Plan, group: Group, rows: Span, keys: int, summary: Tensor) -> Iterator[Tile]:
    """The tiles of the given runs of rows, from their block summary."""
    counts = (summary > 0).sum(-1)
    usual = max(int(counts.median()), 1)
    for first, last, count, blocks in zip(rows.first.tolist(), rows.last.tolist(), counts.tolist(), summary, strict=True):
        tiles = list(_cut_tiles(plan, group, slice(first, last + 1), blocks, keys)) if count else []
        if count > 4 * usual and last - first >= 2 * FINE:
            # perhaps a few rows attend to far more than the rest: cut finer, so that only they pay for it
            fine = spans(last + 1 - first, FINE, first)
            finer = _row_tiles(plan, group, fine, keys, _summarize(plan, group, fine, keys) * (blocks > 0))
            tiles = min(tiles, list(finer), key=_cost)
        yield from tiles


def _summarize(plan: Plan, group: Group, rows: Span, keys: int) -> Tensor:
    """The block summary of some runs of rows that holds for the whole group: equal in coarse blocks need not be equal in finer ones."""
    b = _indices(group.batch, plan.pattern.batch)[:, None, None, None]
    h = _indices(group.heads, plan.pattern.heads)[:, None, None]
    i, parts = Span(*(x + plan.start for x in rows)), []
    for some, every in row_bounds(plan.pattern, b, h, i, spans(keys, COLUMNS)):
        some, every = some.flatten(0, 1).any(0), every.flatten(0, 1).all(0)
        parts.append((some.to(torch.int8) + (some & every).to(torch.int8)).cpu())
    return torch.cat(parts)


def _cut_tiles(plan: Plan, group: Group, rows: slice, blocks: Tensor, keys: int) -> Iterator[Tile]:
    """One run of rows and its live blocks of keys, as one tile, or several where there are many keys."""
    live = (blocks > 0).nonzero()[:, 0]
    columns = (live[:, None] * COLUMNS + torch.arange(COLUMNS)).flatten()
    columns = columns[columns < keys]
    partial = bool((blocks[live] == 1).any())
    if partial and len(columns) <= 4 * WIDEST:  # drop single columns that no row of the tile attends to
        i = torch.arange(rows.start, rows.stop) + plan.start
        columns = columns[plan.allowed(group, i, columns).flatten(0, 2).any(0)]
    for piece in columns.split(WIDEST) if len(columns) else ():
        run = int(piece[-1] - piece[0]) + 1 == len(piece)
        yield Tile(rows, slice(int(piece[0]), int(piece[-1]) + 1) if run else piece, partial, len(columns) > WIDEST)


def is_small(queries: int, keys: int) -> bool:
    """Return whether a whole mask is better than a plan for this many queries and keys."""
    path = forced()
    return queries * keys <= DENSE_PAIRS if path is None else path == "dense"

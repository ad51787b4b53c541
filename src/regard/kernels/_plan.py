"""From a pattern to work: which rows look at which columns, in tiles that leave out what no one may see.

A plan is a list of tiles. Every tile is a run of query rows with the keys that any of them may see (a slice, or a list
of indices where they do not lie together) and the mask inside the tile, or none where all pairs are allowed. Rows that
see nothing are in no tile. Heads and batch rows whose block summaries differ get plans of their own, so that time
follows the pairs that are really live.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..patterns import Full, Pattern, Span, spans

ROWS = (128, 64)  # query rows a tile, whichever makes the cheaper plan
CALL = 8192  # a tile costs its pairs and as much again as this many: so 64 and 128 rows come out nearly equal for window(128), as measured
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
    mask: Tensor | None = None


@dataclass(eq=False, slots=True)
class Group:
    """Batch rows and heads that share their tiles; None stands for all."""

    batch: Tensor | None
    heads: Tensor | None
    tiles: list[Tile]


@dataclass(eq=False, slots=True)
class Plan:
    """All the work of one call."""

    pattern: Pattern
    start: int  # position of the first query
    groups: list[Group]
    live: int  # pairs visited, over all (batch, head) that the pattern tells apart
    total: int  # pairs there are

    @property
    def cost(self) -> int:
        """Pairs visited, a tenth more where a mask is added, and what starting the tiles costs besides."""
        tiles = [(t.rows.stop - t.rows.start, _width(t), t.partial) for group in self.groups for t in group.tiles]
        return int(sum(rows * columns * (1.1 if partial else 1.0) + CALL for rows, columns, partial in tiles))

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


def plan(pattern: Pattern, queries: int, keys: int) -> Plan:
    """The tiles of `pattern` for this many queries and keys. Plans of static patterns are kept."""
    return _kept(pattern, queries, keys) if pattern.static else _make(pattern, queries, keys)


@lru_cache(maxsize=64)
def _kept(pattern: Pattern, queries: int, keys: int) -> Plan:
    made = _make(pattern, queries, keys)
    tiles = [(group, tile) for group in made.groups for tile in group.tiles if tile.partial]
    if sum(4 * (t.rows.stop - t.rows.start) * _width(t) * made.pattern.heads for _, t in tiles) > 16 * KEPT_MASKS:
        return made
    # Away from the borders tiles mostly have the same mask: equal ones are stored once, so little is kept in all.
    known: dict[bytes, Tensor] = {}
    for group, tile in tiles:
        mask = made.allowed(group, *made.positions(tile, torch.device("cpu")))
        content = bytes(mask.shape) if not mask.numel() else str(tuple(mask.shape)).encode() + mask.numpy().tobytes()
        if sum(m.nbytes for m in known.values()) < KEPT_MASKS:
            known.setdefault(content, additive(mask, torch.float32))
        tile.mask = known.get(content)
    return made


def _width(tile: Tile) -> int:
    return tile.columns.stop - tile.columns.start if isinstance(tile.columns, slice) else len(tile.columns)


def _some(chosen: Tensor | None, size: int) -> Tensor:
    return torch.arange(size) if chosen is None else chosen if size > 1 else torch.zeros(1, dtype=torch.long)


def _make(pattern: Pattern, queries: int, keys: int) -> Plan:
    fitted = pattern.fit(queries, keys)
    if queries == 0 or keys == 0:
        return Plan(fitted, keys - queries, [], 0, 0)
    return min((_with_rows(fitted, queries, keys, rows) for rows in ROWS), key=lambda plan: plan.cost)


def _with_rows(fitted: Pattern, queries: int, keys: int, rows: int) -> Plan:
    made = Plan(fitted, keys - queries, [], 0, fitted.batch * fitted.heads * queries * keys)
    summary = fitted.blocks(queries, keys, rows, COLUMNS).cpu()
    for batch in _alike(summary, 0):
        for heads in _alike(summary if batch is None else summary[batch], 1):
            part = summary if batch is None else summary[batch[:1]]
            part = part[0, 0 if heads is None else int(heads[0])]
            group = Group(batch, heads, [])
            _tile(made, group, spans(queries, rows), part, keys)
            made.groups.append(group)
            many = (1 if batch is None else len(batch)) * (1 if heads is None else len(heads))
            made.live += many * sum((t.rows.stop - t.rows.start) * _width(t) for t in group.tiles)
    return made


def _alike(summary: Tensor, axis: int) -> list[Tensor] | list[None]:
    """Indices along an axis, grouped by equal summaries; [None] if all are equal."""
    if summary.shape[axis] == 1:
        return [None]
    _, which = torch.unique(summary.transpose(0, axis).flatten(1), dim=0, return_inverse=True)
    if int(which.max()) == 0:
        return [None]
    return [(which == n).nonzero()[:, 0] for n in range(int(which.max()) + 1)]


def _tile(made: Plan, group: Group, rows: Span, summary: Tensor, keys: int) -> None:
    """Add the tiles of the given runs of rows, whose key blocks are told apart by `summary`."""
    live = (summary > 0).sum(-1)
    usual = max(int(live.median()), 1)
    for (first, last), blocks in zip(zip(rows.first.tolist(), rows.last.tolist(), strict=True), summary, strict=True):
        count = int((blocks > 0).sum())
        if count == 0:
            continue
        if count > 4 * usual and last - first >= 2 * FINE:
            # a few rows see far more than the rest: look closer, so that only they pay for it
            fine = spans(last + 1 - first, FINE, first)
            _tile(made, group, fine, _look(made, group, fine, keys), keys)
            continue
        _add(made, group, slice(first, last + 1), blocks, keys)


def _look(made: Plan, group: Group, rows: Span, keys: int) -> Tensor:
    b = _some(group.batch, made.pattern.batch)[:1, None, None, None]
    h = _some(group.heads, made.pattern.heads)[:1, None, None]
    i = Span(*((x + made.start)[:, None] for x in rows))
    some, every = made.pattern.bounds(b, h, i, spans(keys, COLUMNS))
    summary = some.to(torch.int8) + (some & every).to(torch.int8)
    return summary.expand(1, 1, len(rows.first), -1)[0, 0]


def _add(made: Plan, group: Group, rows: slice, blocks: Tensor, keys: int) -> None:
    live = (blocks > 0).nonzero()[:, 0]
    columns = (live[:, None] * COLUMNS + torch.arange(COLUMNS)).flatten()
    columns = columns[columns < keys]
    partial = bool((blocks[live] == 1).any())
    if partial and len(columns) <= 4 * WIDEST and not isinstance(made.pattern, Full):
        # cut columns that no row of the tile sees
        i = torch.arange(rows.start, rows.stop) + made.start
        seen = made.allowed(group, i, columns).flatten(0, 2).any(0)
        columns = columns[seen]
        if len(columns) == 0:
            return
    for piece in columns.split(WIDEST):
        run = int(piece[-1] - piece[0]) + 1 == len(piece)
        group.tiles.append(Tile(rows, slice(int(piece[0]), int(piece[-1]) + 1) if run else piece, partial))

"""Rules on blocks of positions, and on grids read row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..bounds import Count, Seed, Size
from ..errors import DtypeError, ShapeError
from ._base import Bounds, Derived, Pattern, Span, broadcast, floor, full, rectangles
from .distance import stride, window
from .global_tokens import tokens

MOST_DRAWN = 2**28  # numbers drawn for random blocks: 1 GB


@dataclass(frozen=True, repr=False)
class block_window(Pattern):
    """Blocks of `size` attend to the blocks at most `radius` away: |⌊i/size⌋ − ⌊j/size⌋| ≤ radius.

    Args:
        size: positions per block.
        radius: blocks on either side.
    """

    size: Size
    radius: Count

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return window(self.radius).near(floor(i, self.size) - floor(j, self.size))

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        i, j = (Span(floor(x.first, self.size), floor(x.last, self.size)) for x in (i, j))
        return window(self.radius).bounds(b, h, i, j)

    def reach(self) -> tuple[int, int]:
        return self.size * (self.radius + 1) - 1, 0


@dataclass(frozen=True, repr=False)
class block(block_window):
    """Blocks of `size` attend to themselves: ⌊i/size⌋ = ⌊j/size⌋.

    Args:
        size: positions per block.
    """

    radius: int = field(default=0, init=False, repr=False)


@dataclass(frozen=True, repr=False)
class block_memory(Pattern):
    """Blocks of `size` attend to themselves, the `before` positions before them and the `after` positions after them.

    Args:
        size: positions per block.
        before: positions before the block that it attends to.
        after: positions after the block that it attends to.
    """

    size: Size
    before: Count
    after: Count = 0

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        first = floor(i, self.size) * self.size
        return (j >= first - self.before) & (j < first + self.size + self.after)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        # the keys of neighbouring blocks overlap or touch, so a run of blocks has one interval of keys
        first, last = floor(i.first, self.size) * self.size, floor(i.last, self.size) * self.size
        end = self.size + self.after
        some = (j.last >= first - self.before) & (j.first < last + end)
        return Bounds(some, (j.first >= last - self.before) & (j.last < first + end))

    def reach(self) -> tuple[int, int]:
        return self.size - 1 + self.before, 0


@dataclass(frozen=True, repr=False, init=False)
class token_blocks(Pattern):
    """Global blocks of `size`: all queries may attend to them, and they to all keys. Negative numbers count from the last block.

    Args:
        size: positions per block.
        at: indices of the global blocks.
    """

    size: Size
    at: tuple[int, ...]

    def __init__(self, size: int, *at: int):
        tokens(*at)  # checks that they are integers
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "at", at)
        super().__post_init__()

    def fit(self, queries: int, keys: int) -> Pattern:
        count = math.ceil(keys / self.size)
        starts = {(n + count if n < 0 else n) * self.size for n in self.at}
        return tokens(*(position for start in starts for position in range(start, min(start + self.size, keys))))

    def __repr__(self) -> str:
        return f"token_blocks({', '.join(map(str, (self.size, *self.at)))})"


@dataclass(frozen=True, repr=False)
class same_row(Pattern):
    """Pairs in one row of a grid with `width` columns, read row by row.

    Args:
        width: columns of the grid.
    """

    width: Size

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return block(self.width).allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return block(self.width).bounds(b, h, i, j)

    def reach(self) -> tuple[int, int]:
        return self.width - 1, 0


@dataclass(frozen=True, repr=False)
class same_column(Pattern):
    """Pairs in one column of a grid with `width` columns, read row by row.

    Args:
        width: columns of the grid.
    """

    width: Size

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return stride(self.width).near(i - j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return stride(self.width).bounds(b, h, i, j)


def columns_of(x: Span, width: int) -> Span:
    """The columns that intervals of positions touch on a grid with `width` columns; all of them where a row ends inside."""
    one_row = floor(x.first, width) == floor(x.last, width)
    return Span((x.first % width).where(one_row, 0), (x.last % width).where(one_row, width - 1))


@dataclass(frozen=True, repr=False)
class grid_window(Pattern):
    """Keys at most `radius` rows and `radius` columns away, on a grid with `width` columns.

    Args:
        radius: rows and columns on either side.
        width: columns of the grid.
    """

    radius: Count
    width: Size

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rows = floor(i, self.width) - floor(j, self.width)
        return (rows.abs() <= self.radius) & ((i % self.width - j % self.width).abs() <= self.radius)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        rows = block_window(self.width, self.radius).bounds(b, h, i, j)
        columns = window(self.radius).bounds(b, h, columns_of(i, self.width), columns_of(j, self.width))
        return Bounds(rows.some & columns.some, rows.every & columns.every)

    def reach(self) -> tuple[int, int]:
        return self.radius * self.width + self.radius, 0


@dataclass(frozen=True, repr=False)
class grid_memory(Pattern):
    """Blocks of `rows` × `columns` on a grid with `width` columns: each attends to itself, `up` rows above and `side` columns beside it.

    Args:
        rows: rows per block.
        columns: columns per block.
        up: rows above the block that it attends to.
        side: columns on either side of the block that it attends to.
        width: columns of the grid.
    """

    rows: Size
    columns: Size
    up: Count
    side: Count
    width: Size

    @property
    def _down(self) -> block_memory:
        return block_memory(self.rows, self.up)

    @property
    def _across(self) -> block_memory:
        return block_memory(self.columns, self.side, self.side)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        down = self._down.allows(b, h, floor(i, self.width), floor(j, self.width))
        return down & self._across.allows(b, h, i % self.width, j % self.width)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        rows = (Span(floor(x.first, self.width), floor(x.last, self.width)) for x in (i, j))
        down, across = self._down.bounds(b, h, *rows), self._across.bounds(b, h, *(columns_of(x, self.width) for x in (i, j)))
        return Bounds(down.some & across.some, down.every & across.every)

    def reach(self) -> tuple[int, int]:
        return (self.rows - 1 + self.up) * self.width + self.columns - 1 + self.side, 0


@dataclass(frozen=True, repr=False)
class random_blocks(Pattern):
    """Every block of `size` queries attends to `count` blocks of keys drawn at random, separately for each of `per_head` heads.

    The draw depends on the number of key blocks, so it is made once the lengths are known; `length` fixes it for all shorter sequences
    too, which streaming needs.

    Args:
        count: random blocks of keys per block of queries.
        size: positions per block.
        seed: seed of the draw.
        per_head: number of heads with a draw of their own; 1: the same for all.
        length: number of keys that the draw is made for; None: the number of keys of each call.
    """

    count: Size
    size: Size
    seed: Seed = 0
    per_head: Size = 1
    length: Count | None = None

    @property
    def heads(self) -> int:
        return self.per_head

    def fit(self, queries: int, keys: int) -> Pattern:
        blocks = math.ceil(max(keys, self.length or 0, 1) / self.size)
        before = math.ceil(max(queries - keys, 0) / self.size)  # blocks of queries before the first key, drawn last
        if self.per_head * (blocks + before) * blocks > MOST_DRAWN:
            raise ShapeError(f"{self} for {keys} keys draws from {self.per_head} × {blocks + before} × {blocks} blocks; make `size` larger")
        generator = torch.Generator().manual_seed(self.seed)
        lottery = torch.cat([torch.rand(self.per_head, rows, blocks, generator=generator) for rows in (blocks, before)][::-1], 1)
        drawn = torch.zeros_like(lottery, dtype=torch.bool)
        drawn.scatter_(-1, lottery.topk(min(self.count, blocks)).indices, True)
        return listed_blocks(drawn, self.size, before)


@dataclass(frozen=True, repr=False, eq=False)
class listed_blocks(Pattern):
    """Blocks of `size` queries attend to the key blocks that are True in `table`: (1 or H, query blocks, key blocks).

    The first `before` query blocks of the table end before the first key. Queries before those attend to nothing.

    Args:
        table: booleans, (1 or H, query blocks, key blocks).
        size: positions per block.
        before: query blocks of the table that end before the first key.
    """

    table: Tensor
    size: Size
    before: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.table, Tensor):
            raise DtypeError(
                f"listed_blocks got {type(self.table).__name__}; expected a tensor of booleans (heads, query blocks, key blocks)"
            )
        if self.table.dtype != torch.bool or self.table.dim() != 3:
            raise ShapeError(
                f"listed_blocks got {self.table.dtype} of shape {tuple(self.table.shape)}; expected booleans (heads, query blocks, key blocks)"
            )

    @property
    def heads(self) -> int:
        return len(self.table)

    @property
    def _static(self) -> bool:
        return False

    def fit(self, queries: int, keys: int) -> Pattern:
        rows, columns = (size * self.size for size in self.table.shape[1:])
        if keys > min(rows - self.before * self.size, columns):
            raise ShapeError(f"{self} is too small for {queries} queries and {keys} keys")
        return self

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = floor(i, self.size) + self.before
        return self.table.to(i.device)[broadcast(h, self.heads), row.clamp(min=0), floor(j, self.size)] & (row >= 0)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        i, j = (Span(floor(x.first, self.size), floor(x.last, self.size)) for x in (i, j))
        inside = Span((i.first + self.before).clamp(min=0), (i.last + self.before).clamp(min=-1))
        some, every = rectangles(self.table[None], b * 0, broadcast(h, self.heads), inside, j)
        return Bounds(some, every & (i.first >= -self.before))


@dataclass(frozen=True, repr=False)
class longer_than(Derived):
    """`rule` for sequences of more than `length` keys; shorter ones attend to everything."""

    length: int
    rule: Pattern

    def fit(self, queries: int, keys: int) -> Pattern:
        return full if keys <= self.length else self.rule.fit(queries, keys)


@dataclass(frozen=True, repr=False)
class chunk_ring(Pattern):
    """Chunks of `size` attend to themselves, `before` chunks before and `after` chunks after them; the first follows the last.

    The sequence is padded until chunks of all sizes `used` in the model fit. A single chunk attends to itself.
    """

    size: int
    before: int
    after: int
    used: tuple[int, ...]

    def fit(self, queries: int, keys: int) -> Pattern:
        count = math.ceil(padded_length(keys, self.used) / self.size)
        if count <= 1 + self.before + self.after:
            return full
        near: Pattern = block_memory(self.size, self.before * self.size, self.after * self.size)
        return near | _AroundTheEnds(self.size, self.before, self.after, count)


@dataclass(frozen=True, repr=False)
class _AroundTheEnds(Pattern):
    """Pairs that `before` and `after` reach beyond the first and the last of `count` chunks."""

    size: int
    before: int
    after: int
    count: int

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        of_i, of_j = (floor(x, self.size) for x in (i, j))
        return (of_j - of_i >= self.count - self.before) | (of_i - of_j >= self.count - self.after)


def padded_length(length: int, used: tuple[int, ...]) -> int:
    """The length of a sequence padded until chunks of every size used fit; a single chunk needs no padding."""
    return length if length <= min(used) else math.ceil(length / math.lcm(*used)) * math.lcm(*used)

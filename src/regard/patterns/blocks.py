"""Rules on blocks of positions, and on grids read row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import ShapeError
from ._base import Bounds, Pattern, Span, at_least, floor, rectangles
from .chosen import tokens
from .distance import stride, window


@dataclass(frozen=True, repr=False)
class block_window(Pattern):
    """Blocks of `size` see the blocks at most `radius` away: |⌊i/size⌋ − ⌊j/size⌋| ≤ radius."""

    size: int
    radius: int

    def __post_init__(self) -> None:
        at_least(1, size=self.size)
        at_least(0, radius=self.radius)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return window(self.radius).near(floor(i, self.size) - floor(j, self.size))

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        i, j = (Span(floor(x.first, self.size), floor(x.last, self.size)) for x in (i, j))
        return window(self.radius).bounds(b, h, i, j)

    def most(self, length: int) -> int:
        return min(length, self.size * (2 * self.radius + 1))

    def reach(self) -> tuple[int, int]:
        return self.size * (self.radius + 1) - 1, 0


@dataclass(frozen=True, repr=False)
class block(block_window):
    """Blocks of `size` see themselves: ⌊i/size⌋ = ⌊j/size⌋."""

    radius: int = field(default=0, init=False, repr=False)


@dataclass(frozen=True, repr=False)
class block_memory(Pattern):
    """Blocks of `size` see themselves, the `before` positions before them and the `after` positions after them."""

    size: int
    before: int
    after: int = 0

    def __post_init__(self) -> None:
        at_least(1, size=self.size)
        at_least(0, before=self.before, after=self.after)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        first = floor(i, self.size) * self.size
        return (j >= first - self.before) & (j < first + self.size + self.after)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        # what neighbouring blocks see overlaps or touches, so a run of blocks sees one interval in all
        first, last = floor(i.first, self.size) * self.size, floor(i.last, self.size) * self.size
        end = self.size + self.after
        some = (j.last >= first - self.before) & (j.first < last + end)
        return Bounds(some, (j.first >= last - self.before) & (j.last < first + end))

    def most(self, length: int) -> int:
        return min(length, self.before + self.size + self.after)

    def reach(self) -> tuple[int, int]:
        return self.size - 1 + self.before, 0


@dataclass(frozen=True, repr=False, init=False)
class token_blocks(Pattern):
    """Global blocks of `size`: all may look at them, and they look everywhere. Negative numbers count from the last block."""

    size: int
    at: tuple[int, ...]

    def __init__(self, size: int, *at: int):
        at_least(1, size=size)
        tokens(*at)  # refuses what is no whole number
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "at", at)

    def fit(self, queries: int, keys: int) -> Pattern:
        count = math.ceil(keys / self.size)
        starts = {(n + count if n < 0 else n) * self.size for n in self.at}
        return tokens(*(position for start in starts for position in range(start, start + self.size)))

    def __repr__(self) -> str:
        return f"token_blocks({', '.join(map(str, (self.size, *self.at)))})"


@dataclass(frozen=True, repr=False)
class same_row(Pattern):
    """On a grid `width` wide, read row by row: the pairs in one row."""

    width: int

    def __post_init__(self) -> None:
        at_least(1, width=self.width)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return block(self.width).allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return block(self.width).bounds(b, h, i, j)

    def most(self, length: int) -> int:
        return min(length, self.width)

    def reach(self) -> tuple[int, int]:
        return self.width - 1, 0


@dataclass(frozen=True, repr=False)
class same_column(Pattern):
    """On a grid `width` wide, read row by row: the pairs in one column."""

    width: int

    def __post_init__(self) -> None:
        at_least(1, width=self.width)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return stride(self.width).near(i - j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return stride(self.width).bounds(b, h, i, j)

    def most(self, length: int) -> int:
        return math.ceil(length / self.width)


def columns_of(x: Span, width: int) -> Span:
    """The columns that intervals of positions touch on a grid `width` wide; all of them where a row ends inside."""
    one_row = floor(x.first, width) == floor(x.last, width)
    return Span((x.first % width).where(one_row, 0), (x.last % width).where(one_row, width - 1))


@dataclass(frozen=True, repr=False)
class grid_window(Pattern):
    """On a grid `width` wide: at most `radius` rows and `radius` columns away."""

    radius: int
    width: int

    def __post_init__(self) -> None:
        at_least(0, radius=self.radius)
        at_least(1, width=self.width)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rows = floor(i, self.width) - floor(j, self.width)
        return (rows.abs() <= self.radius) & ((i % self.width - j % self.width).abs() <= self.radius)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        rows = block_window(self.width, self.radius).bounds(b, h, i, j)
        columns = window(self.radius).bounds(b, h, columns_of(i, self.width), columns_of(j, self.width))
        return Bounds(rows.some & columns.some, rows.every & columns.every)

    def most(self, length: int) -> int:
        return min(length, (2 * self.radius + 1) ** 2)

    def reach(self) -> tuple[int, int]:
        return self.radius * self.width + self.radius, 0


@dataclass(frozen=True, repr=False)
class grid_memory(Pattern):
    """On a grid `width` wide, cut into rectangles of `rows` × `columns`: each sees itself, `up` rows above, `side` columns beside it."""

    rows: int
    columns: int
    up: int
    side: int
    width: int

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows, columns=self.columns, width=self.width)
        at_least(0, up=self.up, side=self.side)

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

    def most(self, length: int) -> int:
        return min(length, (self.rows + self.up) * (self.columns + 2 * self.side))

    def reach(self) -> tuple[int, int]:
        return (self.rows - 1 + self.up) * self.width + self.columns - 1 + self.side, 0


@dataclass(frozen=True, repr=False)
class random_blocks(Pattern):
    """Every block of `size` queries sees `count` blocks of keys drawn at random, anew for each of `per_head` heads.

    The draw depends on the number of key blocks, so it is made once the lengths are known; give `length` to fix it
    for all shorter sequences too (streaming needs that).
    """

    count: int
    size: int
    seed: int = 0
    per_head: int = 1
    length: int | None = None

    def __post_init__(self) -> None:
        at_least(1, count=self.count, size=self.size, per_head=self.per_head)

    @property
    def heads(self) -> int:
        return self.per_head

    def fit(self, queries: int, keys: int) -> Pattern:
        rows, columns = (math.ceil(max(x, self.length or 0, 1) / self.size) for x in (max(queries, keys), keys))
        generator = torch.Generator().manual_seed(self.seed)
        lottery = torch.rand(self.per_head, rows, columns, generator=generator)
        drawn = torch.zeros_like(lottery, dtype=torch.bool)
        drawn.scatter_(-1, lottery.topk(min(self.count, columns)).indices, True)
        return listed_blocks(drawn, self.size)

    def most(self, length: int) -> int:
        return min(length, self.count * self.size)


@dataclass(frozen=True, repr=False, eq=False)
class listed_blocks(Pattern):
    """Blocks of `size` queries see the key blocks marked in `table`: (H, query blocks, key blocks), H perhaps 1."""

    table: Tensor
    size: int

    def __post_init__(self) -> None:
        if self.table.dtype != torch.bool or self.table.dim() != 3:
            raise ShapeError(
                f"listed_blocks takes a boolean table (heads, query blocks, key blocks), not {self.table.dtype} of shape {tuple(self.table.shape)}"
            )

    @property
    def heads(self) -> int:
        return len(self.table)

    @property
    def static(self) -> bool:
        return False

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table.to(i.device)[h if self.heads > 1 else h * 0, floor(i, self.size), floor(j, self.size)]

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        i, j = (Span(floor(x.first, self.size), floor(x.last, self.size)) for x in (i, j))
        return rectangles(self.table[None], b * 0, h if self.heads > 1 else h * 0, i, j)

    def most(self, length: int) -> int:
        return min(length, int(self.table.sum(-1).max()) * self.size)

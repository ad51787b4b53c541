"""Where one may look: rules on (query position i, key position j) that combine with & | ~.

    >>> from regard import causal, window, tokens
    >>> causal & (window(2) | tokens(0))
    causal & (window(2) | tokens(0))
    >>> print((causal & (window(2) | tokens(0))).draw(6))
    ■·····
    ■■····
    ■■■···
    ■■■■··
    ■·■■■·
    ■··■■■

A pattern says *where*, never *how much* (that is a mechanism) nor *how it is computed* (that is a kernel). True means
*may look*. Each rule has three forms, which must agree:

- `allows(b, h, i, j)`: the rule itself, on broadcasting index tensors (batch row, head, query position, key position);
- `bounds(b, h, i, j)`: the rule on rectangles i = [first, last] × j = [first, last], answering "is any pair allowed?"
  (`some`; may err towards True) and "are all pairs allowed?" (`every`; may err towards False). Combined by
  three-valued logic, it tells empty, full and partial blocks apart without looking at single pairs;
- `most(length)`: a bound on the keys one query may see, when there are `length` keys.

Positions are aligned at the end: among M keys, the last of L queries stands at position M − 1. So `causal` means the
same for a whole sequence, for a decoding step with a cache, and for a block of new tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import DtypeError, ShapeError


class Span(NamedTuple):
    """Intervals of positions, both ends included."""

    first: Tensor
    last: Tensor


class Bounds(NamedTuple):
    """What is known of a rectangle of pairs without visiting them."""

    some: Tensor  # False only if no pair is allowed
    every: Tensor  # True only if all pairs are allowed


class Pattern:
    """Who may look at whom. Combine with `&`, `|`, `~`; print to see the rule; `draw(n)` to see the picture."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """True where query i of head h in batch row b may look at key j. All four broadcast."""
        raise NotImplementedError

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        """What is sure about rectangles of pairs. The default is sure of nothing, which is always sound."""
        shape = torch.broadcast_shapes(b.shape, h.shape, i.first.shape, j.first.shape)
        some = torch.ones(shape, dtype=torch.bool, device=i.first.device)
        return Bounds(some, ~some)

    def most(self, length: int) -> int:
        """At most this many of `length` keys are seen by one query."""
        return length

    def fit(self, queries: int, keys: int) -> Pattern:
        """The same pattern with everything that depends on the two lengths worked out."""
        return self

    def reach(self) -> tuple[int, int] | None:
        """(w, s) if a query sees nothing behind it but the keys at most w back and the first s; None if unbounded.

        A streaming cache may forget the rest.
        """
        return None

    @property
    def batch(self) -> int:
        """How many batch rows the rule tells apart: 1 if it is the same for all."""
        return 1

    @property
    def heads(self) -> int:
        """How many heads the rule tells apart: 1 if it is the same for all."""
        return 1

    @property
    def static(self) -> bool:
        """Whether the rule holds only numbers, no tensors: equal patterns are then interchangeable, and plans kept."""
        return True

    # -- combining ---------------------------------------------------------------------------------------------

    def __and__(self, other: Pattern) -> Pattern:
        if isinstance(self, Full) or isinstance(other, Full):
            return other if isinstance(self, Full) else self
        return Both(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return full if isinstance(self, Full) or isinstance(other, Full) else Either(self, other)

    def __invert__(self) -> Pattern:
        return self.inner if isinstance(self, Not) else Not(self)

    # -- seeing ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The rule as one would type it."""
        return repr(self)

    def mask(self, queries: int, keys: int, device: torch.device | str | None = None) -> Tensor:
        """The whole rule as booleans `mask_BHLM`; B and H are 1 where the rule is the same for all."""
        pattern = self.fit(queries, keys)
        b, h, i, j = indices(pattern, queries, keys, device)
        return pattern.allows(b, h, i, j).expand(pattern.batch, pattern.heads, queries, keys)

    def blocks(self, queries: int, keys: int, size: int, key_size: int | None = None) -> Tensor:
        """The block summary, (B, H, query blocks, key blocks): 0 empty, 1 partial, 2 full."""
        pattern, key_size = self.fit(queries, keys), key_size or size
        b, h, _, _ = indices(pattern, 1, 1, None)
        i, j = spans(queries, size, keys - queries), spans(keys, key_size)
        some, every = pattern.bounds(b, h, Span(i.first[:, None], i.last[:, None]), j)
        shape = (pattern.batch, pattern.heads, len(i.first), len(j.first))
        return (some.to(torch.int8) + (some & every).to(torch.int8)).expand(shape)

    def draw(self, size: int, keys: int | None = None) -> str:
        """The picture in characters: a line a query, ■ where it may look. The first batch row; heads below each other."""
        mask_HLM = self.mask(size, keys or size)[0]
        pictures = ["\n".join("".join("■" if cell else "·" for cell in row) for row in head) for head in mask_HLM.tolist()]
        return "\n\n".join(pictures)

    def save_png(self, path: str | Path, size: int = 64, keys: int | None = None) -> Path:
        """The picture as a PNG file: dark where a query (row) may look at a key (column)."""
        from matplotlib.figure import Figure  # only when a picture is asked for

        mask_HLM = self.mask(size, keys or size)[0]
        figure = Figure(figsize=(3.4 * len(mask_HLM), 3.7), layout="constrained")
        for h, axis in enumerate(figure.subplots(1, len(mask_HLM), squeeze=False)[0]):
            axis.imshow(mask_HLM[h].numpy(), cmap="Blues", vmin=0, vmax=1.3, interpolation="nearest")
            axis.set_title(f"head {h}" if len(mask_HLM) > 1 else self.name, fontsize=9, wrap=True)
            axis.set_xlabel("key")
            axis.set_ylabel("query")
        if len(mask_HLM) > 1:
            figure.suptitle(self.name, fontsize=9, wrap=True)
        figure.savefig(path, dpi=150)
        return Path(path)

    def _repr_html_(self) -> str:
        return f"<b>{self.name}</b><pre style='line-height:1.0'>{self.draw(32)}</pre>"

    def __repr__(self) -> str:
        shown = [_short(getattr(self, f.name)) for f in fields(self) if f.repr] if hasattr(self, "__dataclass_fields__") else []
        return f"{type(self).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    return f"<{'×'.join(map(str, value.shape))}>" if isinstance(value, Tensor) else repr(value)


def indices(pattern: Pattern, queries: int, keys: int, device: torch.device | str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Index tensors (b, h, i, j) over the whole rule, shaped to broadcast to BHLM."""
    b = torch.arange(pattern.batch, device=device)[:, None, None, None]
    h = torch.arange(pattern.heads, device=device)[:, None, None]
    return b, h, torch.arange(keys - queries, keys, device=device)[:, None], torch.arange(keys, device=device)


def spans(length: int, size: int, start: int = 0) -> Span:
    """`length` positions from `start` on, cut into blocks of `size`, the last one perhaps shorter."""
    first = torch.arange(0, length, size)
    return Span(first + start, (first + size).clamp(max=length) - 1 + start)


# -- algebra -------------------------------------------------------------------------------------------------------


def _join(sizes: tuple[int, int], what: str, pattern: Pattern) -> int:
    if len({*sizes} - {1}) > 1:
        raise ShapeError(f"`{pattern}` combines rules for {sizes[0]} and {sizes[1]} {what}; both must be the same, or 1")
    return max(sizes)


@dataclass(frozen=True, repr=False)
class _Pair(Pattern):
    left: Pattern
    right: Pattern

    def __post_init__(self) -> None:
        _ = self.batch, self.heads  # raises where the two do not fit together

    def fit(self, queries: int, keys: int) -> Pattern:
        return type(self)(self.left.fit(queries, keys), self.right.fit(queries, keys))

    @property
    def batch(self) -> int:
        return _join((self.left.batch, self.right.batch), "batch rows", self)

    @property
    def heads(self) -> int:
        return _join((self.left.heads, self.right.heads), "heads", self)

    @property
    def static(self) -> bool:
        return self.left.static and self.right.static


class Both(_Pair):
    """Allowed by both."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.left.allows(b, h, i, j) & self.right.allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        left, right = self.left.bounds(b, h, i, j), self.right.bounds(b, h, i, j)
        return Bounds(left.some & right.some, left.every & right.every)

    def most(self, length: int) -> int:
        return min(self.left.most(length), self.right.most(length))

    def reach(self) -> tuple[int, int] | None:
        known = [r for r in (self.left.reach(), self.right.reach()) if r is not None]
        return min(known) if known else None

    def __repr__(self) -> str:
        return " & ".join(f"({p})" if isinstance(p, Either) else repr(p) for p in (self.left, self.right))


class Either(_Pair):
    """Allowed by one or the other."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.left.allows(b, h, i, j) | self.right.allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        left, right = self.left.bounds(b, h, i, j), self.right.bounds(b, h, i, j)
        return Bounds(left.some | right.some, left.every | right.every)

    def most(self, length: int) -> int:
        return min(length, self.left.most(length) + self.right.most(length))

    def reach(self) -> tuple[int, int] | None:
        left, right = self.left.reach(), self.right.reach()
        return None if left is None or right is None else (max(left[0], right[0]), max(left[1], right[1]))

    def __repr__(self) -> str:
        return " | ".join(repr(p) for p in (self.left, self.right))


@dataclass(frozen=True, repr=False)
class Not(Pattern):
    """Allowed where the inner rule is not."""

    inner: Pattern

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ~self.inner.allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        some, every = self.inner.bounds(b, h, i, j)
        return Bounds(~every, ~some)

    def fit(self, queries: int, keys: int) -> Pattern:
        return Not(self.inner.fit(queries, keys))

    @property
    def batch(self) -> int:
        return self.inner.batch

    @property
    def heads(self) -> int:
        return self.inner.heads

    @property
    def static(self) -> bool:
        return self.inner.static

    def __repr__(self) -> str:
        return f"~({self.inner})" if isinstance(self.inner, _Pair) else f"~{self.inner}"


# -- everything, and rules on the distance i − j ---------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Full(Pattern):
    """Everyone may look at everyone."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(b.shape, h.shape, i.shape, j.shape)
        return torch.ones(shape, dtype=torch.bool, device=i.device)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        every = self.allows(b, h, i.first, j.first)
        return Bounds(every, every)

    def __repr__(self) -> str:
        return "full"


class Distance(Pattern):
    """A rule on the distance d = i − j alone: the same picture wherever one stands."""

    def near(self, d: Tensor) -> Tensor:
        """The rule on distances."""
        raise NotImplementedError

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        """The rule on intervals of distances, both ends included."""
        raise NotImplementedError

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.near(i - j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.between(i.first - j.last, i.last - j.first)


@dataclass(frozen=True, repr=False)
class Causal(Distance):
    """No looking ahead: j ≤ i."""

    def near(self, d: Tensor) -> Tensor:
        return d >= 0

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        return Bounds(high >= 0, low >= 0)

    def __repr__(self) -> str:
        return "causal"


@dataclass(frozen=True, repr=False)
class window(Distance):  # noqa: N801  (rules are written as they print)
    """At most `radius` away, on either side: |i − j| ≤ radius."""

    radius: int

    def __post_init__(self) -> None:
        _at_least(0, radius=self.radius)

    def near(self, d: Tensor) -> Tensor:
        return d.abs() <= self.radius

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        return Bounds((low <= self.radius) & (high >= -self.radius), (low >= -self.radius) & (high <= self.radius))

    def most(self, length: int) -> int:
        return min(length, 2 * self.radius + 1)

    def reach(self) -> tuple[int, int]:
        return self.radius, 0


@dataclass(frozen=True, repr=False)
class local_causal(Distance):  # noqa: N801
    """At most `back` behind, none ahead: 0 ≤ i − j ≤ back."""

    back: int

    def __post_init__(self) -> None:
        _at_least(0, back=self.back)

    def near(self, d: Tensor) -> Tensor:
        return (d >= 0) & (d <= self.back)

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        return Bounds((low <= self.back) & (high >= 0), (low >= 0) & (high <= self.back))

    def most(self, length: int) -> int:
        return min(length, self.back + 1)

    def reach(self) -> tuple[int, int]:
        return self.back, 0


@dataclass(frozen=True, repr=False)
class stride(Distance):  # noqa: N801
    """Every `step`-th key, counted from the query: (i − j) mod step = 0."""

    step: int

    def __post_init__(self) -> None:
        _at_least(1, step=self.step)

    def near(self, d: Tensor) -> Tensor:
        return d % self.step == 0

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        some = high.div(self.step, rounding_mode="floor") * self.step >= low
        return Bounds(some, some & ((low == high) | (self.step == 1)))

    def most(self, length: int) -> int:
        return math.ceil(length / self.step)


@dataclass(frozen=True, repr=False)
class dilated(Distance):  # noqa: N801
    """A window with gaps: every `step`-th key, `radius` of them on either side."""

    radius: int
    step: int

    def __post_init__(self) -> None:
        _at_least(0, radius=self.radius)
        _at_least(1, step=self.step)

    def near(self, d: Tensor) -> Tensor:
        return (d.abs() <= self.radius * self.step) & (d % self.step == 0)

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        far = self.radius * self.step
        some, every = stride(self.step).between(low.clamp(min=-far), high.clamp(max=far))
        return Bounds(some & (low <= far) & (high >= -far), every & (low >= -far) & (high <= far))

    def most(self, length: int) -> int:
        return min(length, 2 * self.radius + 1)

    def reach(self) -> tuple[int, int]:
        return self.radius * self.step, 0


# -- rules on blocks of positions, and on grids read row by row -------------------------------------------------------


@dataclass(frozen=True, repr=False)
class block_window(Pattern):  # noqa: N801
    """Blocks of `size` see the blocks at most `radius` away: |⌊i/size⌋ − ⌊j/size⌋| ≤ radius."""

    size: int
    radius: int

    def __post_init__(self) -> None:
        _at_least(1, size=self.size)
        _at_least(0, radius=self.radius)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return window(self.radius).near(_floor(i, self.size) - _floor(j, self.size))

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        i, j = (Span(_floor(x.first, self.size), _floor(x.last, self.size)) for x in (i, j))
        return window(self.radius).bounds(b, h, i, j)

    def most(self, length: int) -> int:
        return min(length, self.size * (2 * self.radius + 1))

    def reach(self) -> tuple[int, int]:
        return self.size * (self.radius + 1) - 1, 0


@dataclass(frozen=True, repr=False)
class block(block_window):  # noqa: N801
    """Blocks of `size` see themselves: ⌊i/size⌋ = ⌊j/size⌋."""

    radius: int = field(default=0, init=False, repr=False)


@dataclass(frozen=True, repr=False)
class same_row(Pattern):  # noqa: N801
    """On a grid `width` wide, read row by row: the pairs in one row."""

    width: int

    def __post_init__(self) -> None:
        _at_least(1, width=self.width)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return block(self.width).allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return block(self.width).bounds(b, h, i, j)

    def most(self, length: int) -> int:
        return min(length, self.width)

    def reach(self) -> tuple[int, int]:
        return self.width - 1, 0


@dataclass(frozen=True, repr=False)
class same_column(Pattern):  # noqa: N801
    """On a grid `width` wide, read row by row: the pairs in one column."""

    width: int

    def __post_init__(self) -> None:
        _at_least(1, width=self.width)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return stride(self.width).near(i - j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return stride(self.width).bounds(b, h, i, j)

    def most(self, length: int) -> int:
        return math.ceil(length / self.width)


@dataclass(frozen=True, repr=False)
class grid_window(Pattern):  # noqa: N801
    """On a grid `width` wide: at most `radius` rows and `radius` columns away."""

    radius: int
    width: int

    def __post_init__(self) -> None:
        _at_least(0, radius=self.radius)
        _at_least(1, width=self.width)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rows = _floor(i, self.width) - _floor(j, self.width)
        return (rows.abs() <= self.radius) & ((i % self.width - j % self.width).abs() <= self.radius)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        rows = block_window(self.width, self.radius).bounds(b, h, i, j)
        columns = window(self.radius).bounds(b, h, self._columns(i), self._columns(j))
        return Bounds(rows.some & columns.some, rows.every & columns.every)

    def _columns(self, x: Span) -> Span:
        one_row = _floor(x.first, self.width) == _floor(x.last, self.width)
        return Span((x.first % self.width).where(one_row, 0), (x.last % self.width).where(one_row, self.width - 1))

    def most(self, length: int) -> int:
        return min(length, (2 * self.radius + 1) ** 2)

    def reach(self) -> tuple[int, int]:
        return self.radius * self.width + self.radius, 0


# -- chosen keys and queries ---------------------------------------------------------------------------------------


class _Chosen(Pattern):
    """A rule on one side alone, given as a count of the chosen positions below x."""

    def count(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def inside(self, x: Span) -> Bounds:
        chosen = self.count(x.last + 1) - self.count(x.first)
        return Bounds(chosen > 0, chosen == x.last - x.first + 1)


@dataclass(frozen=True, repr=False)
class summary(_Chosen):  # noqa: N801
    """The last `count` keys of every block of `size`, for everyone: j mod size ≥ size − count."""

    size: int
    last: int

    def __post_init__(self) -> None:
        _at_least(1, size=self.size, last=self.last)

    def count(self, x: Tensor) -> Tensor:
        return _floor(x, self.size) * self.last + (x % self.size - (self.size - self.last)).clamp(min=0)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j % self.size >= self.size - self.last) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.inside(j)

    def most(self, length: int) -> int:
        return min(length, math.ceil(length / self.size) * self.last)


@dataclass(frozen=True, repr=False, init=False)
class _Tokens(_Chosen):
    at: tuple[int, ...]

    def __init__(self, *at: int):
        if not all(isinstance(position, int) for position in at):
            raise DtypeError(f"{type(self).__name__}{at}: positions are whole numbers; from the end if negative")
        object.__setattr__(self, "at", tuple(sorted(set(at))))

    def fit(self, queries: int, keys: int) -> Pattern:
        return type(self)(*(position + keys if position < 0 else position for position in self.at))

    def count(self, x: Tensor) -> Tensor:
        return torch.searchsorted(torch.tensor(self.at, device=x.device), x.contiguous())

    def chosen(self, x: Tensor) -> Tensor:
        return torch.isin(x, torch.tensor(self.at, dtype=x.dtype, device=x.device))

    def reach(self) -> tuple[int, int] | None:
        # behind a chosen query, and among chosen keys, there is nothing beyond the last chosen position
        return None if any(position < 0 for position in self.at) else (0, max(self.at, default=-1) + 1)

    def __repr__(self) -> str:
        runs = f"*range({self.at[0]}, {self.at[-1] + 1})" if self._long_run else ", ".join(map(str, self.at))
        return f"{type(self).__name__}({runs})"

    @property
    def _long_run(self) -> bool:
        return len(self.at) > 4 and self.at[-1] - self.at[0] == len(self.at) - 1


class to_tokens(_Tokens):  # noqa: N801
    """Everyone may look at these keys. Negative positions count from the end."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.chosen(j) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.inside(j)

    def most(self, length: int) -> int:
        return min(length, len(self.at))


class from_tokens(_Tokens):  # noqa: N801
    """These queries may look everywhere. Negative positions count from the end."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.chosen(i) & (j == j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.inside(i)


class tokens(_Tokens):  # noqa: N801
    """Global tokens: all may look at them, and they look everywhere. Under `causal &` only the first half remains."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.chosen(i) | self.chosen(j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        queries, keys = self.inside(i), self.inside(j)
        return Bounds(queries.some | keys.some, queries.every | keys.every)


@dataclass(frozen=True, repr=False)
class random_blocks(Pattern):  # noqa: N801
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
        _at_least(1, count=self.count, size=self.size, per_head=self.per_head)

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
class listed_blocks(Pattern):  # noqa: N801
    """Blocks of `size` queries see the key blocks marked in `table`: (H, query blocks, key blocks), H perhaps 1."""

    table: Tensor
    size: int

    def __post_init__(self) -> None:
        if self.table.dtype != torch.bool or self.table.dim() != 3:
            raise ShapeError(f"listed_blocks takes a boolean table (heads, query blocks, key blocks), not {self.table.dtype} of shape {tuple(self.table.shape)}")

    @property
    def heads(self) -> int:
        return len(self.table)

    @property
    def static(self) -> bool:
        return False

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table.to(i.device)[h if self.heads > 1 else h * 0, _floor(i, self.size), _floor(j, self.size)]

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        i, j = (Span(_floor(x.first, self.size), _floor(x.last, self.size)) for x in (i, j))
        return _rectangles(self.table[None], b * 0, h if self.heads > 1 else h * 0, i, j)

    def most(self, length: int) -> int:
        return min(length, int(self.table.sum(-1).max()) * self.size)


# -- rules that come with the data ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class _Data(Pattern):
    @property
    def static(self) -> bool:
        return False


@dataclass(frozen=True, repr=False, eq=False)
class lengths(_Data):  # noqa: N801
    """Padding: batch row b has `keys[b]` real keys, the rest may not be looked at."""

    keys: Tensor

    def __init__(self, keys: Tensor | list[int]):
        keys = torch.as_tensor(keys)
        if keys.dim() != 1 or keys.dtype.is_floating_point or keys.dtype == torch.bool:
            raise ShapeError(f"lengths takes one whole number a batch row, not {keys.dtype} of shape {tuple(keys.shape)}; for a boolean mask use keep(mask)")
        object.__setattr__(self, "keys", keys)

    @property
    def batch(self) -> int:
        return len(self.keys)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j < self.keys.to(j.device)[b]) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        keys = self.keys.to(j.first.device)[b]
        return Bounds(j.first < keys, j.last < keys)


@dataclass(frozen=True, repr=False, eq=False)
class since(_Data):  # noqa: N801
    """Batch row b sees nothing before position `first[b]`: a stream that began anew there, or padding on the left."""

    first: Tensor

    @property
    def batch(self) -> int:
        return len(self.first)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j >= self.first.to(j.device)[b]) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        first = self.first.to(j.first.device)[b]
        return Bounds(j.last >= first, j.first >= first)


@dataclass(frozen=True, repr=False, eq=False)
class segments(_Data):  # noqa: N801
    """Documents packed in one row: only pairs with the same number see each other. `ids` is (M,) or (B, M).

    Queries of another sequence than the keys have numbers of their own, `query_ids`.
    """

    ids: Tensor
    query_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for ids in (self.ids, self._queries):
            if ids.dim() not in (1, 2) or ids.dtype.is_floating_point:
                raise ShapeError(f"segments takes whole numbers (M,) or (B, M), not {ids.dtype} of shape {tuple(ids.shape)}")

    @property
    def _queries(self) -> Tensor:
        return self.ids if self.query_ids is None else self.query_ids

    @property
    def batch(self) -> int:
        return _join(tuple(1 if x.dim() == 1 else len(x) for x in (self.ids, self._queries)), "batch rows", self)  # type: ignore[arg-type]

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return _pick(self._queries, b, i + self._shift) == _pick(self.ids, b, j)

    @property
    def _shift(self) -> int:  # from the position of a query to its place in query_ids
        return self._queries.shape[-1] - self.ids.shape[-1]

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        (i_low, i_high), (j_low, j_high) = _extremes(self._queries, b, i, self._shift), _extremes(self.ids, b, j, 0)
        return Bounds((i_low <= j_high) & (j_low <= i_high), (i_low == i_high) & (j_low == j_high) & (i_low == j_low))


@dataclass(frozen=True, repr=False, eq=False)
class keep(_Data):  # noqa: N801
    """Any boolean mask, True = may look: (L, M), or (B, H, L, M) with 1 for what is shared."""

    allowed: Tensor

    def __post_init__(self) -> None:
        if self.allowed.dtype != torch.bool:
            raise DtypeError(f"keep takes booleans, True = may look, not {self.allowed.dtype}; a float mask is a bias: attention(..., bias=mask)")
        if self.allowed.dim() not in (2, 4):
            raise ShapeError(f"keep takes (L, M) or (B, H, L, M), not {tuple(self.allowed.shape)}; for padding use lengths(n), or mask[:, None, None, :]")

    @property
    def batch(self) -> int:
        return self.allowed.shape[0] if self.allowed.dim() == 4 else 1

    @property
    def heads(self) -> int:
        return self.allowed.shape[1] if self.allowed.dim() == 4 else 1

    @property
    def _mask_BHLM(self) -> Tensor:
        return self.allowed if self.allowed.dim() == 4 else self.allowed[None, None]

    def fit(self, queries: int, keys: int) -> Pattern:
        L, M = self.allowed.shape[-2:]
        if M != 1 and M < keys or L != 1 and L < queries:
            raise ShapeError(f"keep<{L}×{M}> is too small for {queries} queries and {keys} keys")
        return self

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        mask = self._mask_BHLM.to(i.device)
        B, H, L, M = mask.shape
        row = i * 0 if L == 1 else i + (0 if M == 1 else L - M)
        return mask[b if B > 1 else b * 0, h if H > 1 else h * 0, row, j if M > 1 else j * 0]

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        B, H, L, M = self._mask_BHLM.shape
        if L == 1 or M == 1:
            return super().bounds(b, h, i, j)
        i = Span(i.first + L - M, i.last + L - M)
        return _rectangles(self._mask_BHLM, b if B > 1 else b * 0, h if H > 1 else h * 0, i, j)


@dataclass(frozen=True, repr=False, eq=False)
class edges(_Data):  # noqa: N801
    """A graph: node i may look at node j if (i, j) is among the `pairs`, a (2, E) tensor of query and key nodes."""

    pairs: Tensor

    def __post_init__(self) -> None:
        if self.pairs.dim() != 2 or self.pairs.shape[0] != 2 or self.pairs.dtype.is_floating_point:
            raise ShapeError(f"edges takes whole numbers (2, E), not {self.pairs.dtype} of shape {tuple(self.pairs.shape)}")

    @property
    def _stretch(self) -> int:
        return int(self.pairs.max()) + 1 if self.pairs.numel() else 1

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        n = self._stretch
        known = torch.unique(self.pairs[0] * n + self.pairs[1]).to(i.device)
        return torch.isin(i * n + j, known) & (i < n) & (j < n) & (i >= 0)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        pairs = torch.unique(self.pairs.cpu(), dim=1)
        rows, columns = (x.first.flatten() for x in (i, j))
        row, column = (torch.searchsorted(first, x.contiguous(), right=True) - 1 for first, x in zip((rows, columns), pairs, strict=True))
        inside = (row >= 0) & (column >= 0)
        inside &= (pairs[0] <= i.last.flatten()[row]) & (pairs[1] <= j.last.flatten()[column])
        count = torch.bincount((row * len(columns) + column)[inside], minlength=len(rows) * len(columns))
        count = count.view(len(rows), len(columns))
        return Bounds(count > 0, count == (i.last - i.first + 1) * (j.last - j.first + 1))

    def most(self, length: int) -> int:
        return min(length, int(torch.bincount(self.pairs[0]).max())) if self.pairs.numel() else 0


@dataclass(frozen=True, repr=False, init=False)
class per_head(Pattern):  # noqa: N801
    """Head h follows the h-th rule."""

    rules: tuple[Pattern, ...]

    def __init__(self, *rules: Pattern):
        if not rules or any(rule.heads > 1 for rule in rules):
            raise ShapeError("per_head takes one rule a head, and rules that do not tell heads apart themselves")
        object.__setattr__(self, "rules", rules)

    @property
    def heads(self) -> int:
        return len(self.rules)

    @property
    def batch(self) -> int:
        return reduce(lambda size, rule: _join((size, rule.batch), "batch rows", self), self.rules, 1)

    @property
    def static(self) -> bool:
        return all(rule.static for rule in self.rules)

    def fit(self, queries: int, keys: int) -> Pattern:
        return per_head(*(rule.fit(queries, keys) for rule in self.rules))

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return reduce(torch.Tensor.bitwise_or, ((h == n) & rule.allows(b, h, i, j) for n, rule in enumerate(self.rules)))

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        each = [((h == n), rule.bounds(b, h, i, j)) for n, rule in enumerate(self.rules)]
        some, every = (reduce(torch.Tensor.bitwise_or, ((mine & known[x]) for mine, known in each)) for x in (0, 1))
        return Bounds(some, every)

    def most(self, length: int) -> int:
        return max(rule.most(length) for rule in self.rules)

    def reach(self) -> tuple[int, int] | None:
        all_known = [rule.reach() for rule in self.rules]
        return None if None in all_known else tuple(max(pair) for pair in zip(*all_known, strict=True))  # type: ignore[arg-type,return-value]

    def __repr__(self) -> str:
        return f"per_head({', '.join(map(repr, self.rules))})"


@dataclass(frozen=True, repr=False, eq=False)
class placed(_Data):  # noqa: N801
    """A rule on positions, for queries and keys that stand at `queries` and `keys` (both increasing), not at 0, 1, 2 …"""

    rule: Pattern
    queries: Tensor
    keys: Tensor

    @property
    def batch(self) -> int:
        return self.rule.batch

    @property
    def heads(self) -> int:
        return self.rule.heads

    @property
    def _shift(self) -> int:
        return len(self.queries) - len(self.keys)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.rule.allows(b, h, self.queries.to(i.device)[i + self._shift], self.keys.to(j.device)[j])

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        i = Span(*(self.queries[x + self._shift] for x in i))
        return self.rule.bounds(b, h, i, Span(*(self.keys[x] for x in j)))

    def most(self, length: int) -> int:
        return self.rule.most(length)

    def __repr__(self) -> str:
        return repr(self.rule)


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or value < least:
            raise ShapeError(f"{name}={value!r}: expected a whole number, at least {least}")


def _floor(x: Tensor, size: int) -> Tensor:
    return x.div(size, rounding_mode="floor")


def _pick(ids: Tensor, b: Tensor, x: Tensor) -> Tensor:
    ids = ids.to(x.device)
    return ids[x] if ids.dim() == 1 else ids[b, x]


def _rectangles(mask_BHLM: Tensor, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
    """Bounds of a table of booleans, exact, by counting: one pass makes sums from the corner, four look-ups a count."""
    corner = F.pad(mask_BHLM.cpu().to(torch.int32), (1, 0, 1, 0)).cumsum(-1).cumsum(-2)
    top, bottom, left, right = i.first, i.last + 1, j.first, j.last + 1
    count = corner[b, h, bottom, right] - corner[b, h, top, right] - corner[b, h, bottom, left] + corner[b, h, top, left]
    return Bounds(count > 0, count == (bottom - top) * (right - left))


def _extremes(ids: Tensor, b: Tensor, x: Span, shift: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest number inside each interval; the intervals are few, so each is visited."""
    ids = ids.cpu()
    ends = zip((x.first.flatten() + shift).tolist(), (x.last.flatten() + shift + 1).tolist(), strict=True)
    parts = [ids[..., first:last] for first, last in ends]
    low, high = (torch.stack([getattr(p, f)(-1) for p in parts], -1) for f in ("amin", "amax"))
    shape = x.first.shape if ids.dim() == 1 else (len(ids), 1, *([1] * (2 - x.first.dim())), *x.first.shape)
    return low.view(shape), high.view(shape)


full = Full()
causal = Causal()

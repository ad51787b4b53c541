"""Rules that select some keys or some queries: global tokens, summaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from ..bounds import Count, Size
from ..errors import DtypeError
from ._base import Bounds, Derived, Pattern, Span, as_pattern, floor


class _Chosen(Pattern):
    """A rule on queries or keys alone, given by the number of selected positions below x."""

    def count(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def inside(self, x: Span) -> Bounds:
        chosen = self.count(x.last + 1) - self.count(x.first)
        return Bounds(chosen > 0, chosen == x.last - x.first + 1)


@dataclass(frozen=True, repr=False)
class summary(_Chosen):
    """The last `last` keys of every block of `size`, for all queries: j mod size ≥ size − last.

    Args:
        size: positions per block.
        last: summaries at the end of each block.
    """

    size: Size
    last: Size

    def count(self, x: Tensor) -> Tensor:
        return floor(x, self.size) * self.last + (x % self.size - (self.size - self.last)).clamp(min=0)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j % self.size >= self.size - self.last) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.inside(j)


@dataclass(frozen=True, repr=False, init=False)
class _Tokens(_Chosen):
    at: tuple[int, ...]

    def __init__(self, *at: int):
        if not all(isinstance(position, int) and not isinstance(position, bool) for position in at):
            raise DtypeError(f"{type(self).__name__}{at}: positions must be integers; negative ones count from the end")
        object.__setattr__(self, "at", tuple(sorted(set(at))))

    def fit(self, queries: int, keys: int) -> Pattern:
        return type(self)(*(position + keys if position < 0 else position for position in self.at))

    def count(self, x: Tensor) -> Tensor:
        return torch.searchsorted(torch.tensor(self.at, device=x.device), x.contiguous())

    def chosen(self, x: Tensor) -> Tensor:
        return torch.isin(x, torch.tensor(self.at, dtype=x.dtype, device=x.device))

    def reach(self) -> tuple[int, int] | None:
        # before a selected query, and among selected keys, there is nothing beyond the last selected position
        return None if any(position < 0 for position in self.at) else (0, max(self.at, default=-1) + 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_runs(self.at))})"


def _runs(at: tuple[int, ...]) -> Iterator[str]:
    """Increasing positions as text, those that follow each other as ranges."""
    for _, numbered in groupby(enumerate(at), lambda pair: pair[1] - pair[0]):
        run = [position for _, position in numbered]
        yield from map(str, run) if len(run) < 5 else [f"*range({run[0]}, {run[-1] + 1})"]


class to_tokens(_Tokens):
    """All queries may attend to these keys. Negative positions count from the end.

    Args:
        at: positions of the keys.
    """

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.chosen(j) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.inside(j)


class from_tokens(_Tokens):
    """These queries may attend to all keys. Negative positions count from the end.

    Args:
        at: positions of the queries.
    """

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.chosen(i) & (j == j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.inside(i)


class tokens(_Tokens):
    """Global tokens: all queries may attend to them, and they to all keys. Under `causal &` only the first half remains.

    Args:
        at: positions of the global tokens; negative ones count from the end.
    """

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.chosen(i) | self.chosen(j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        queries, keys = self.inside(i), self.inside(j)
        return Bounds(queries.some | keys.some, queries.every | keys.every)


@dataclass(frozen=True, repr=False)
class behind(Derived):
    """The rule for a sequence that comes after `front` other positions; to and from those nothing is allowed.

    Args:
        rule: rule of the sequence.
        front: number of positions before it.
    """

    rule: Pattern
    front: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", as_pattern(self.rule))

    def fit(self, queries: int, keys: int) -> Pattern:
        keys = max(keys - self.front, 0)
        return behind(self.rule.fit(min(queries, keys), keys), self.front)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        # clamp to 0: rules backed by a table must not be indexed before its start
        inside = (i >= self.front) & (j >= self.front)
        return self.rule.allows(b, h, (i - self.front).clamp(min=0), (j - self.front).clamp(min=0)) & inside

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        some, every = self.rule.bounds(b, h, *(Span(*((end - self.front).clamp(min=0) for end in x)) for x in (i, j)))
        reaches, within = (i.last >= self.front) & (j.last >= self.front), (i.first >= self.front) & (j.first >= self.front)
        return Bounds(some & reaches, every & within)

    def reach(self) -> tuple[int, int] | None:
        known = self.rule.reach()
        return None if known is None else (known[0], known[1] + self.front)

"""How the keys lie: along a line, on a grid, in sentences, or on a graph. A picture is drawn after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import BadFile, ShapeError


@dataclass(frozen=True)
class Sequence:
    """One after another: words, letters, time."""

    def check(self, keys: int) -> None:
        """Any number of keys fits."""


@dataclass(frozen=True)
class Grid:
    """Row by row over height × width places, e.g. the patches of an image; `first` keys stand before it (a class token)."""

    height: int
    width: int
    first: int = 0

    def __post_init__(self) -> None:
        if any(type(size) is not int for size in (self.height, self.width, self.first)):
            raise ShapeError(f"the sizes of a Grid are whole numbers, got {self.height!r}, {self.width!r}, {self.first!r}")

    def check(self, keys: int) -> None:
        if min(self.height, self.width) < 1 or self.first < 0 or self.first + self.height * self.width != keys:
            raise ShapeError(f"{self} has {self.first} + {self.height} × {self.width} places, but there are {keys} keys")


@dataclass(frozen=True, init=False)
class Tree:
    """Sentences of words: sentence s holds the keys from spans[s][0] up to, not including, spans[s][1]."""

    spans: tuple[tuple[int, int], ...]

    def __init__(self, spans: Iterable[tuple[int, int]]):
        object.__setattr__(self, "spans", tuple((int(first), int(end)) for first, end in spans))

    def check(self, keys: int) -> None:
        ends = [0, *(end for _, end in self.spans)]
        if [first for first, _ in self.spans] != ends[:-1] or ends[-1] != keys or any(end <= first for first, end in self.spans):
            raise ShapeError(f"the spans of a Tree follow each other from 0 to the number of keys, here {keys}; got {self.spans}")


@dataclass(frozen=True, init=False)
class Graph:
    """Nodes joined by edges: (i, j) says that node i may look at node j."""

    edges: tuple[tuple[int, int], ...]

    def __init__(self, edges: Iterable[tuple[int, int]]):
        object.__setattr__(self, "edges", tuple((int(i), int(j)) for i, j in edges))

    def check(self, keys: int) -> None:
        wrong = [edge for edge in self.edges if not 0 <= edge[1] < keys or edge[0] < 0]
        if wrong:
            raise ShapeError(f"edges of a Graph join nodes 0 … {keys - 1}; got {wrong[:3]}")


Layout = Sequence | Grid | Tree | Graph


def to_json(layout: Layout) -> dict[str, Any]:
    """The layout as plain data."""
    return {"kind": type(layout).__name__.lower()} | dict(vars(layout))


def from_json(data: Any) -> Layout:
    """The layout that was plain data."""
    kinds: dict[str, type[Layout]] = {"sequence": Sequence, "grid": Grid, "tree": Tree, "graph": Graph}
    try:
        fields = dict(data)
        return kinds[fields.pop("kind")](**fields)
    except (KeyError, TypeError, ValueError) as wrong:
        raise BadFile(f"{str(data)[:80]!r} is not a layout; expected kind = {', '.join(kinds)} and its sizes") from wrong

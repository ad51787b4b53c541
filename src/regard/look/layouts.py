"""The layout of the keys, which decides how a map is drawn: a sequence, a grid, sentences of words, or a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import BadFile, ShapeError


@dataclass(frozen=True)
class Sequence:
    """One after another: words, characters, time."""

    def check(self, keys: int) -> None:
        """Any number of keys fits."""


@dataclass(frozen=True)
class Grid:
    """Row by row over rows × columns positions, e.g. the patches of an image; `prefix_tokens` come before it (a class token).

    Of a video there is a grid per frame, one after another.

    Args:
        rows: rows of a frame.
        columns: columns of a frame.
        prefix_tokens: tokens before the grid.
        frames: number of frames.
    """

    rows: int
    columns: int
    prefix_tokens: int = 0
    frames: int = 1

    def __post_init__(self) -> None:
        if any(type(size) is not int for size in vars(self).values()):
            raise ShapeError(f"{self}; expected whole numbers")

    def check(self, keys: int) -> None:
        sizes = (self.frames, self.rows, self.columns)
        if min(sizes) < 1 or self.prefix_tokens < 0 or self.prefix_tokens + math.prod(sizes) != keys:
            raise ShapeError(f"{self} has {self.prefix_tokens} + {' × '.join(map(str, sizes))} positions, but there are {keys} keys")

    def side_by_side(self, weights_M: Tensor) -> Tensor:
        """Weights of all keys as (rows, frames · columns), without those of the tokens before the grid: frames stand in a row."""
        return weights_M[self.prefix_tokens :].view(self.frames, self.rows, self.columns).transpose(0, 1).flatten(1)


@dataclass(frozen=True, init=False)
class Tree:
    """Sentences of words: sentence s holds the keys from `spans[s][0]` up to, not including, `spans[s][1]`.

    Args:
        spans: first key and end of each sentence.
    """

    spans: tuple[tuple[int, int], ...]

    def __init__(self, spans: Iterable[tuple[int, int]]):
        object.__setattr__(self, "spans", tuple((int(first), int(end)) for first, end in spans))

    def check(self, keys: int) -> None:
        ends = [0, *(end for _, end in self.spans)]
        if [first for first, _ in self.spans] != ends[:-1] or ends[-1] != keys or any(end <= first for first, end in self.spans):
            raise ShapeError(f"Tree has spans {self.spans}; expected non-empty ones, one after another, from 0 to {keys} keys")


@dataclass(frozen=True, init=False)
class Graph:
    """Nodes joined by edges: along (i, j), node i may attend to node j.

    Args:
        edges: pairs of nodes (i, j), query first.
    """

    edges: tuple[tuple[int, int], ...]

    def __init__(self, edges: Iterable[tuple[int, int]]):
        object.__setattr__(self, "edges", tuple((int(i), int(j)) for i, j in edges))

    def check(self, keys: int) -> None:
        wrong = [edge for edge in self.edges if not 0 <= edge[1] < keys or edge[0] < 0]
        if wrong:
            raise ShapeError(f"Graph has edges {wrong[:3]}; expected nodes from 0 to {keys - 1}")


Layout = Sequence | Grid | Tree | Graph


def to_json(layout: Layout) -> dict[str, Any]:
    return {"kind": type(layout).__name__.lower()} | dict(vars(layout))


def from_json(data: Any) -> Layout:
    kinds: dict[str, type[Layout]] = {"sequence": Sequence, "grid": Grid, "tree": Tree, "graph": Graph}
    try:
        fields = dict(data)
        return kinds[fields.pop("kind")](**fields)
    except (KeyError, TypeError, ValueError) as wrong:
        raise BadFile(f"{str(data)[:80]!r} is not a layout; expected kind = {', '.join(kinds)} and its sizes") from wrong

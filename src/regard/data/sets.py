"""Sets of vectors, each with a number, a label, the index of an item, or nothing but its items.

    max:10                          1 to 10 numbers from 0 to 100, and the largest
    unique:10                       6 to 10 points in the plane, some of them copies; how many different ones there are
    clusters:4                      30 to 60 points of a mixture of 4 Gaussians in the plane, no target
    odd:10                          10 digits of 8 × 8 pixels, all of one kind but one; the index of that one
    sets.jsonl                      {"set": [[0.1, 2], [0.7, 1]], "y": 0.7}; items of one number may be written [0.1, 0.7]; without "y" no target
    sets.npz                        items (all sets end to end, a row per item), offset (where each begins, and the end), perhaps y

Generated sources take count= and seed=. The digits of a set are all of one part (training, validation, test), so that no image is in two. A set is refused
with file and line if it is empty, if a coordinate is not finite, or if its items are not as wide as those of the first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, NotSupported
from .arrays import read_arrays
from .labelled_images import read_digits
from .lines import Fault, objects
from .sources import between_option, source_options

Items = npt.NDArray[np.float32]  # (items, numbers per item)
TargetKind = Literal["number", "label", "index", "clusters"]
LONGEST = 1 << 24  # bytes of a line
COUNT = 10_000  # sets of a generated source
SIDE, STD = 4.0, 0.3  # of clusters: means are in ± SIDE on each axis
APART, NEAR = 0.15, 0.02  # of unique: distance between different points of the unit square, standard deviation of copies


class SetExample(NamedTuple):
    """A set and its target: a number, a label, the index of an item, or None where the items are all there is."""

    items: Items
    target: float | str | int | None
    key: str  # equal keys are in one part
    names: tuple[str, ...] = ()  # names of the items, where they have some

    def content(self) -> bytes:
        """Content as bytes."""
        return repr(self.target).encode() + str(self.items.shape).encode() + self.items.tobytes()


@dataclass
class Expected:
    """Width and target of the sets, as the first one has them or as a run was trained; the others must agree.

    Args:
        kind: kind of the target; None: by the first set.
        width: numbers per item; None: by the first set.
    """

    kind: TargetKind | None = None
    width: int | None = None


def read_set_source(source: str, expected: Expected, part: Callable[[str], str]) -> Iterator[SetExample | Fault]:
    """Sets of one source, and a fault for each that cannot be used.

    Args:
        source: file, or the name of a generated source.
        expected: width and kind of target; what is not known yet is filled in.
        part: part that a key falls in.
    """
    name, colon, text = source.partition(":")
    if colon and name in SOURCES:
        kind, make = SOURCES[name]
        expected.kind = expected.kind or kind
        found: Iterator[tuple[str, Any, Any, tuple[str, ...], str]] = (
            (f"{source}, set {n}", one.items, one.target, one.names, one.key) for n, one in enumerate(make(text, part))
        )
    else:
        found = _npz(Path(source)) if source.endswith(".npz") else _jsonl(source)
    for where, items, target, names, key in found:
        yield items if isinstance(items, Fault) else _checked(where, items, target, names, key, expected)


def set_of(described: Any, expected: Expected, where: str = "the input") -> SetExample:
    """Set of plain values, without a target, or NotSupported.

    Args:
        described: list of items.
        expected: width of the items.
        where: name of the input, for errors.
    """
    found = _checked(where, described, None, (), "", Expected(width=expected.width), targets=False)
    if isinstance(found, Fault):
        raise NotSupported(
            f"{where}: {found.what}{found.detail and f' ({found.detail})'}; expected a JSON list of items, as in [[0.1, 2], [0.7, 1]]"
        )
    return found


def _checked(
    where: str, described: Any, target: Any, names: tuple[str, ...], key: str, expected: Expected, targets: bool = True
) -> SetExample | Fault:
    items = _items(where, described)
    if isinstance(items, Fault):
        return items
    width = items.shape[1]
    if expected.width is None:
        expected.width = width
    if width != expected.width:
        return Fault(where, "items of another width", f"{width} numbers per item, the first set has {expected.width}")
    target = _target(where, target, len(items), expected) if targets else None
    if isinstance(target, Fault):
        return target
    return SetExample(items, target, key or f"{target}{items.tobytes().hex()}", names)


def _items(where: str, described: Any) -> Items | Fault:
    """Rows of numbers, or what is wrong with them."""
    rows: Any = described
    if isinstance(described, np.ndarray):
        pass
    elif not isinstance(described, list):
        return Fault(where, "no list of items", f"found {str(described)[:40]}", 'write {"set": [[0.1, 2], [0.7, 1]]}')
    else:
        rows = [[one] for one in described] if described and not any(isinstance(one, list) for one in described) else described
        if any(not isinstance(row, list) or not all(type(x) in (int, float) for x in row) for row in rows):
            return Fault(where, "an item that is not a list of numbers", "", "write numbers only")
        if len({len(row) for row in rows}) > 1:
            return Fault(
                where, "items of different widths", f"{' and '.join(map(str, sorted({len(row) for row in rows})))} numbers per item"
            )
    if not len(rows):
        return Fault(where, "an empty set", remedy="leave it out")
    if not len(rows[0]):
        return Fault(where, "items without numbers", remedy="leave it out")
    with np.errstate(over="ignore"):
        try:
            items = np.array(rows, dtype=np.float64).astype(np.float32)
        except OverflowError:
            return Fault(where, "a coordinate that is not finite", "an integer beyond 1e308")
    if not np.isfinite(items).all():
        at = int(np.flatnonzero(~np.isfinite(items).all(1))[0])
        return Fault(where, "a coordinate that is not finite", f"item {at} is {list(rows[at])}"[:80])
    return items


def _target(where: str, target: Any, size: int, expected: Expected) -> float | str | int | Fault | None:
    """Target as the kind has it; the first set decides the kind where none is given."""
    if expected.kind is None:
        expected.kind = "clusters" if target is None else "number" if type(target) in (int, float) else "label"
    kind = expected.kind
    if kind == "clusters":
        return None
    if target is None:
        return Fault(where, "no target", "", f"give the {kind} as y")
    if kind == "label":
        return (
            str(target)
            if isinstance(target, str | int | float) and str(target).strip()
            else Fault(where, "a label that is not a text", str(target)[:40])
        )
    if type(target) not in (int, float) or not abs(target) < 1e30:
        return Fault(
            where, "a target that is not an index" if kind == "index" else "a target that is not a finite number", str(target)[:40]
        )
    if kind == "number":
        return float(target)
    if target != int(target) or not 0 <= target < size:
        return Fault(where, "an index outside of the set", f"{target}, the set has {size} items, counted from 0")
    return int(target)


def _jsonl(path: str) -> Iterator[tuple[str, Any, Any, tuple[str, ...], str]]:
    for where, described in objects(path, LONGEST):
        if isinstance(described, Fault):
            yield where, described, None, (), ""
        elif not isinstance(described, dict) or "set" not in described:
            found = ", ".join(map(repr, described))[:80] if isinstance(described, dict) else type(described).__name__
            yield where, Fault(where, "no set", f"found {found}", 'write {"set": [[0.1, 2], [0.7, 1]], "y": 0.7}'), None, (), ""
        else:
            yield where, described["set"], described.get("y"), (), ""


def _npz(path: Path) -> Iterator[tuple[str, Any, Any, tuple[str, ...], str]]:
    arrays = read_arrays(path)
    if not {"items", "offset"} <= arrays.keys():
        raise BadFile(f"{path}: holds {', '.join(arrays) or 'no arrays'}; expected items and offset, and y if there are targets")
    items, offset, y = arrays["items"], arrays["offset"], arrays.get("y")
    items = items[:, None] if items.ndim == 1 else items
    if items.ndim != 2 or items.dtype.kind not in "iuf":
        raise BadFile(f"{path}: items of shape {items.shape} and {items.dtype}; expected (items, numbers per item)")
    if offset.ndim != 1 or offset.dtype.kind not in "iu" or not len(offset) or offset[0] != 0 or offset[-1] != len(items):
        raise BadFile(f"{path}: offsets of shape {offset.shape}; expected whole numbers from 0 to {len(items):,}, one more than sets")
    starts = offset.astype(np.int64)
    if (np.diff(starts) < 0).any():
        raise BadFile(f"{path}: offsets that fall; expected where each set begins, in order")
    if y is not None and (y.shape != (len(starts) - 1,) or y.dtype.kind not in "iufU"):
        raise BadFile(f"{path}: y of shape {y.shape} and {y.dtype}; expected {len(starts) - 1:,} numbers or texts, one per set")
    for n, (begin, end) in enumerate(pairwise(starts.tolist())):
        yield f"{path}, set {n}", items[begin:end], None if y is None else y[n].item(), (), ""


# -- generated sets ------------------------------------------------------------------------------------------------------


def _chosen(text: str, example: str, default: int, low: int, high: int) -> tuple[int, int, np.random.Generator]:
    """Size, count and random numbers that a source was given."""
    head, chosen = source_options(text, {"count": COUNT, "seed": 0})
    if head and not head.isdecimal():
        raise NotSupported(f"{head!r}: expected a number, as in {example}")
    size = between_option(example, int(head or default), low, high)
    return size, between_option("count", chosen["count"], 1, 10_000_000), np.random.default_rng(chosen["seed"])


def largest(text: str, part: Callable[[str], str]) -> Iterator[SetExample]:
    """Sets of numbers with one decimal, and the largest."""
    size, count, generator = _chosen(text, "max:10", 10, 1, 10_000)
    for _ in range(count):
        items = generator.integers(0, 1001, (generator.integers(1, size + 1), 1)).astype(np.float32) / np.float32(10)
        yield SetExample(items, float(items.max()), "")


def unique(text: str, part: Callable[[str], str]) -> Iterator[SetExample]:
    """Points of which some are copies, a little moved; the number of different ones."""
    size, count, generator = _chosen(text, "unique:10", 10, 2, 20)
    for _ in range(count):
        items = int(generator.integers(max(2, size - 4), size + 1))
        different = int(generator.integers(1, items + 1))
        places = np.zeros((0, 2))
        while len(places) < different:
            place = generator.random((1, 2))
            if np.square(places - place).sum(1).min(initial=1) > APART**2:
                places = np.concatenate([places, place])
        which = generator.permutation(np.concatenate([np.arange(different), generator.integers(0, different, items - different)]))
        at = places[which] + generator.normal(0, NEAR, (items, 2))
        yield SetExample(at.astype(np.float32), float(different), "", tuple("ABCDEFGHIJKLMNOPQRST"[n] for n in which))


def clusters(text: str, part: Callable[[str], str]) -> Iterator[SetExample]:
    """Points of a mixture of Gaussians: means from a square, shares from a uniform Dirichlet distribution."""
    components, count, generator = _chosen(text, "clusters:4", 4, 1, 26)
    for _ in range(count):
        mean, share = generator.uniform(-SIDE, SIDE, (components, 2)), generator.dirichlet(np.ones(components))
        which = generator.choice(components, int(generator.integers(30, 61)), p=share)
        yield SetExample(generator.normal(mean[which], STD).astype(np.float32), None, "")


def odd(text: str, part: Callable[[str], str]) -> Iterator[SetExample]:
    """Images of one digit and one of another, and its index. All are of the part of the first."""
    size, count, generator = _chosen(text, "odd:10", 10, 2, 30)
    pixels, label_E = read_digits()
    flat = (pixels.reshape(len(pixels), -1) / 255).astype(np.float32)
    part_E = np.array([part(str(n)) for n in range(len(flat))])
    for _ in range(count):
        first = int(generator.integers(len(flat)))
        mine = part_E == part_E[first]
        same = np.flatnonzero(mine & (label_E == label_E[first]))
        others = np.flatnonzero(mine & (label_E != label_E[first]))
        if len(same) < 2 or not len(others):
            raise NotSupported(f"odd:{text}: too few digits in a part; expected larger --shares")
        rest = generator.choice(same[same != first], size - 2, replace=len(same) < size)
        which = np.array([generator.choice(others), first, *rest])
        order = generator.permutation(size)
        names = tuple(map(str, label_E[which[order]]))
        yield SetExample(flat[which[order]], int(np.flatnonzero(order == 0)[0]), str(first), names)


SOURCES: dict[str, tuple[TargetKind, Callable[[str, Callable[[str], str]], Iterator[SetExample]]]] = {
    "max": ("number", largest),
    "unique": ("number", unique),
    "clusters": ("clusters", clusters),
    "odd": ("index", odd),
}


def as_json(items: Items, digits: int = 4) -> str:
    """A set as text that `predict` reads.

    Args:
        items: items of the set.
        digits: decimals that are kept.
    """
    return json.dumps([[round(x, digits) for x in row] for row in items.astype(np.float64).tolist()])


def width_of(examples: Sequence[SetExample]) -> int:
    """Numbers per item.

    Args:
        examples: some sets.
    """
    return int(examples[0].items.shape[1])


def whole(examples: Sequence[SetExample]) -> bool:
    """Return whether all targets are whole numbers: counts.

    Args:
        examples: sets with numbers.
    """
    return all(isinstance(one.target, float) and one.target == math.floor(one.target) for one in examples)

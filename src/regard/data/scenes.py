"""Generated scenes: coloured shapes on white, captions that are all true, and the box of each object.

    scenes:                                  2,000 scenes of 32 × 32 pixels with one or two objects
    scenes:count=500,size=48,seed=3
    scenes:objects=1                         one object each
    scenes:objects=4                         one to four
    scenes:colours=4,shapes=3                the first four colours and the first three shapes only
    scenes:pairings=seen                     without six pairings of colour and shape, those of `UNSEEN`
    scenes:pairings=unseen,objects=1         those only

    one object      a large red circle · a red circle at the top left
    two objects     a red circle left of a blue square · a blue square right of a red circle ·
                    a large red circle and a small blue square · a small blue square and a large red circle
    more objects    the same of every two of them

The objects of a scene differ in colour and in shape, so a word names one of them. A relation holds along the axis on which the centres are
further apart, by a clear margin; of more than two objects, pairs without a margin have no such caption. Every pixel belongs to a shape or to the background: there is no anti-aliasing. A scene depends on the
seed and on its number alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import NotSupported
from .images import Pixels
from .sources import between_option, source_options

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 200, 40),
    "purple": (150, 60, 180),
    "black": (30, 30, 30),
}
SHAPES = ("circle", "square", "triangle", "cross", "diamond")
SIZES = {"small": 0.22, "large": 0.38}  # of the side of the image
UNSEEN = tuple((colour, SHAPES[n % len(SHAPES)]) for n, colour in enumerate(COLOURS))  # each colour once, each shape once or twice
PAIRINGS = ("all", "seen", "unseen")
DEFAULTS: dict[str, Any] = {
    "count": 2000, "size": 32, "objects": 2, "colours": len(COLOURS), "shapes": len(SHAPES), "pairings": "all", "seed": 0,
}  # fmt: skip
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are outside


@dataclass(frozen=True)
class Thing:
    """One object of a scene."""

    colour: str
    shape: str
    size: str
    box: Box

    @property
    def centre(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    def __str__(self) -> str:
        return f"{self.colour} {self.shape}"


class Scene(NamedTuple):
    pixels: Pixels  # (size, size, 3)
    captions: tuple[str, ...]
    things: tuple[Thing, ...]


def scenes(text: str = "") -> list[Scene]:
    """The scenes that the part after `scenes:` describes."""
    _, chosen = source_options(f",{text}" if text else "", DEFAULTS)
    count, size = between_option("count", chosen["count"], 1, 1_000_000), between_option("size", chosen["size"], 16, 512)
    if chosen["pairings"] not in PAIRINGS:
        raise NotSupported(f"pairings={chosen['pairings']}: expected one of {', '.join(PAIRINGS)}")
    if count * size * size * 3 > 4 << 30:
        raise NotSupported(f"{count:,} scenes of {size} × {size} pixels are more than 4 GiB; make fewer or smaller ones")
    colours, shapes = (
        between_option("colours", chosen["colours"], 2, len(COLOURS)),
        between_option("shapes", chosen["shapes"], 2, len(SHAPES)),
    )
    objects = between_option("objects", chosen["objects"], 1, min(4, colours, shapes))
    kinds = [one for one in _pairings(chosen["pairings"]) if one[0] in [*COLOURS][:colours] and one[1] in SHAPES[:shapes]]
    return [_scene(random.Random(f"{chosen['seed']}/{number}"), size, objects, kinds) for number in range(count)]


def _pairings(which: str) -> list[tuple[str, str]]:
    every = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    return every if which == "all" else [pair for pair in every if (pair in UNSEEN) == (which == "unseen")]


def _scene(draw: random.Random, size: int, objects: int, kinds: list[tuple[str, str]]) -> Scene:
    while True:
        things: list[Thing] = []
        for _ in range(draw.randint(1, objects)):
            colour, shape = draw.choice([k for k in kinds if all(k[0] != one.colour and k[1] != one.shape for one in things)])
            name = draw.choice(list(SIZES))
            side = max(5, round(SIZES[name] * size))
            left, top = draw.randint(0, size - side), draw.randint(0, size - side)
            things.append(Thing(colour, shape, name, (left, top, left + side, top + side)))
        pairs = list(combinations(things, 2))
        if all(_apart(one.box, other.box) for one, other in pairs) and (not pairs or any(_relation(*pair, size) for pair in pairs)):
            break
    pixels = np.full((size, size, 3), 255, dtype=np.uint8)
    for thing in things:
        left, top, right, bottom = thing.box
        pixels[top:bottom, left:right][silhouette(thing.shape, right - left)] = COLOURS[thing.colour]
    return Scene(pixels, _captions(things, size), tuple(things))


def _apart(one: Box, other: Box) -> bool:
    """Return whether there is at least a pixel between two boxes."""
    return one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


def _relation(one: Thing, other: Thing, size: int) -> str:
    """Where the first object is, seen from the second; none if both axes would do."""
    x, y = (a - b for a, b in zip(one.centre, other.centre, strict=True))
    if abs(abs(x) - abs(y)) < size / 8:
        return ""
    return ("left of" if x < 0 else "right of") if abs(x) > abs(y) else ("above" if y < 0 else "below")


def _place(thing: Thing, size: int) -> str:
    """The third of the image that the centre is in, across and down."""
    x, y = (min(2, int(3 * at / size)) for at in thing.centre)
    where = " ".join(filter(None, (("top", "", "bottom")[y], ("left", "", "right")[x])))
    return f"at the {where}" if where else "in the middle"


def _captions(things: list[Thing], size: int) -> tuple[str, ...]:
    if len(things) == 1:
        return f"a {things[0].size} {things[0]}", f"a {things[0]} {_place(things[0], size)}"
    pairs = list(permutations(things, 2))
    related = (f"a {one} {relation} a {other}" for one, other in pairs if (relation := _relation(one, other, size)))
    listed = (f"a {one.size} {one} and a {other.size} {other}" for one, other in pairs)
    return (*related, *listed)


@cache
def silhouette(shape: str, side: int) -> npt.NDArray[np.bool_]:
    """The pixels of a shape in its box, (side, side)."""
    y, x = np.mgrid[:side, :side] - (side - 1) / 2  # from the centre of the box
    half = side / 2
    if shape == "circle":
        return np.asarray(x**2 + y**2 <= half**2)
    if shape == "square":
        return np.ones((side, side), dtype=np.bool_)
    if shape == "triangle":  # its tip is at the top
        return np.asarray(np.abs(x) <= (y + half) / 2)
    if shape == "cross":
        return np.asarray(np.minimum(np.abs(x), np.abs(y)) <= half / 3)
    assert shape == "diamond"
    return np.asarray(np.abs(x) + np.abs(y) <= half)


def class_names(pairings: str = "all") -> list[str]:
    """The classes of scenes with one object: "red circle", "red square" …"""
    return [f"{colour} {shape}" for colour, shape in _pairings(pairings)]


def recognise(pixels: Pixels) -> str:
    """The class of a scene with one object, from its pixels: the nearest colour of most pixels that are not white, and the shape that covers
    them best. "" if all are white. It reads images that a model has drawn."""
    palette = np.array([(255, 255, 255), *COLOURS.values()])
    nearest = ((pixels[:, :, None].astype(int) - palette) ** 2).sum(-1).argmin(-1)
    counts = np.bincount(nearest.ravel(), minlength=len(palette))[1:]
    if not counts.any():
        return ""
    mask = nearest == counts.argmax() + 1
    part = _cropped(mask)
    overlap = {shape: _overlap(part, _cropped(silhouette(shape, max(part.shape)))) for shape in SHAPES}
    return f"{list(COLOURS)[counts.argmax()]} {max(overlap, key=lambda shape: overlap[shape])}"


def _cropped(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The rows and columns from the first to the last pixel: the tip of a triangle may leave the first row of its box empty."""
    down, across = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return mask[down[0] : down[-1] + 1, across[0] : across[-1] + 1]


def _overlap(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
    """Pixels in both over pixels in either, with the first rows and columns aligned."""
    height, width = min(one.shape[0], other.shape[0]), min(one.shape[1], other.shape[1])
    both = int((one[:height, :width] & other[:height, :width]).sum())
    return both / (int(one.sum()) + int(other.sum()) - both)

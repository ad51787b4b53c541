"""Handwriting without a file: letters of the Hershey fonts, written by people who do not exist.

    hershey:scripts                            connected script, 6,000 lines
    hershey:futural,count=2000,seed=1          plain upright letters
    hershey:scripts,letters=9,words=1          one word of up to nine letters per line
    hershey:scripts,capitals=30                30 % of the words begin with a capital

The fonts (A. V. Hershey, 1967) are lists of pen strokes, not outlines: a glyph is what a plotter's pen does. Each line is written by another
writer, who differs in slant, size, width of letters, speed (the distance between two points), direction and drift of the baseline, and in how
much the pen trembles. Words are random letters rather than a language's, so that every pair of letters occurs: what is trained on them can
write any text.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._extras import extra
from ..errors import NotSupported, UnknownName
from .sources import between_option, source_options

Points = npt.NDArray[np.float32]  # (L, 3): dx, dy (down), and 1 where the pen is lifted afterwards
Path = npt.NDArray[np.float64]  # (L, 3): where the pen is, and in which letter of the text

FONTS = ("futural", "scripts", "futuram", "cursive", "rowmans", "scriptc", "timesi", "gothiceng")
LOWER, UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SEVERAL = 0.25  # of the lines have more than one word: enough to learn the space, and short lines train faster
SPACING = 4.0  # mean distance between two points, in units of the font: lower-case letters are 9 to 14 high
CORNER = 0.5  # cosine of the angle from which a turn is a corner, which resampling keeps: 60 degrees
JOIN = 3.0  # strokes that begin this close to where the one before ended are written without lifting the pen


class HersheyLine(NamedTuple):
    """A line of text, the points that write it, and to which of its characters each point belongs."""

    text: str
    points: Points
    letters: npt.NDArray[np.int64]


def hershey(text: str) -> list[HersheyLine]:
    """Lines of text, from what follows `hershey:`."""
    font, chosen = source_options(text, {"count": 6000, "letters": 7, "words": 2, "capitals": 0, "seed": 0})
    font = font or "scripts"
    if font not in FONTS:
        raise UnknownName("Hershey font", font, FONTS)
    count = between_option("count", chosen["count"], 1, 1_000_000)
    longest, words = between_option("letters", chosen["letters"], 1, 20), between_option("words", chosen["words"], 1, 10)
    capitals = between_option("capitals", chosen["capitals"], 0, 100) / 100
    generator, noise = random.Random(chosen["seed"]), np.random.default_rng(chosen["seed"])
    made = []
    for _ in range(count):
        several = generator.randint(2, words) if words > 1 and generator.random() < SEVERAL else 1
        line = " ".join(_word(generator, longest, capitals) for _ in range(several))
        made.append(Writer.draw(noise).write(line, font, noise))
    return made


def _word(generator: random.Random, longest: int, capitals: float) -> str:
    word = "".join(generator.choice(LOWER) for _ in range(generator.randint(min(2, longest), longest)))
    return generator.choice(UPPER) + word[1:] if generator.random() < capitals else word


class Writer:
    """Hand of one person: slant, size, shape of letters."""

    def __init__(self, *, slant: float, size: float, width: float, speed: float, direction: float, drift: float, tremble: float):
        self.slant, self.size, self.width, self.speed = slant, size, width, speed
        self.direction, self.drift, self.tremble = direction, drift, tremble

    @classmethod
    def draw(cls, noise: np.random.Generator) -> Writer:
        """A writer at random."""
        return cls(
            slant=noise.normal(0, 0.12),
            size=float(np.exp(noise.normal(0, 0.12))),
            width=float(np.exp(noise.normal(0, 0.08))),
            speed=float(np.exp(noise.normal(0, 0.12))),
            direction=noise.normal(0, 0.02),
            drift=noise.uniform(0, 1.2),
            tremble=noise.uniform(0.1, 0.4),
        )

    def write(self, text: str, font: str, noise: np.random.Generator) -> HersheyLine:
        """A line in this hand."""
        strokes = [resample(self._move(stroke, noise), SPACING * self.speed) for stroke in text_strokes(text, font)]
        path = np.concatenate(strokes)
        at = path[:, :2] + noise.normal(0, self.tremble, (len(path), 2))
        lifted = np.concatenate([np.eye(1, len(stroke), len(stroke) - 1)[0] for stroke in strokes])
        points = np.column_stack([np.diff(at, axis=0, prepend=at[:1]), lifted]).astype(np.float32)  # the first point is the origin
        return HersheyLine(text, points, path[:, 2].round().astype(np.int64))

    def _move(self, stroke: Path, noise: np.random.Generator) -> Path:
        """A stroke of the font as this writer draws it: slanted, scaled, and a little out of place."""
        x, y, letter = stroke.T
        x = self.width * (x - self.slant * y) + noise.normal(0, 0.25)
        y = y + self.direction * x + self.drift * np.sin(x / 35) + noise.normal(0, 0.25)
        return np.stack([self.size * x, self.size * y, letter], 1)


def text_strokes(text: str, font: str) -> list[Path]:
    """The strokes of a text as the font has them, those joined that the pen need not be lifted between."""
    strokes: list[Path] = []
    at = 0.0
    for number, letter in enumerate(text):
        left, advance, glyph = _glyph(letter, font)
        for stroke in glyph:
            moved = np.column_stack([stroke[:, 0] + at - left, stroke[:, 1], np.full(len(stroke), number)])
            if strokes and np.hypot(*(moved[0] - strokes[-1][-1])[:2]) <= JOIN:
                strokes[-1] = np.concatenate([strokes[-1], moved[1:]])
            else:
                strokes.append(moved)
        at += advance
    return strokes


@cache
def _glyph(letter: str, font: str) -> tuple[float, float, tuple[npt.NDArray[np.float64], ...]]:
    """Left edge, width and strokes (L, 2) of a letter."""
    found = list(_font(font).glyphs_for_text(letter))
    if len(found) != 1 or (letter != " " and not found[0].strokes):
        raise NotSupported(f"the Hershey font {font} has no {letter!r}; use letters, digits and punctuation of ASCII")
    strokes = tuple(np.array(stroke, dtype=np.float64) for stroke in found[0].strokes if len(stroke) > 1)
    return float(found[0].left_offset), float(found[0].char_width), strokes


@cache
def _font(name: str) -> Any:
    with extra("data"):
        from HersheyFonts import HersheyFonts

    font = HersheyFonts()
    font.load_default_font(name)
    return font


def resample(stroke: Path, spacing: float) -> Path:
    """Resample a line to points about `spacing` apart; corners and both ends stay where they are."""
    step = np.diff(stroke[:, :2], axis=0)
    length = np.hypot(*step.T)
    stroke, step, length = stroke[np.r_[True, length > 0]], step[length > 0], length[length > 0]
    cosine = (step[1:] * step[:-1]).sum(1) / (length[1:] * length[:-1])
    ends = [0, *(np.flatnonzero(cosine < CORNER) + 1), len(step)]
    along, pieces = np.r_[0.0, length.cumsum()], [stroke[:1]]
    for first, last in pairwise(ends):
        points = max(1, round((along[last] - along[first]) / spacing))
        wanted = np.linspace(along[first], along[last], points + 1)[1:]
        pieces.append(np.stack([np.interp(wanted, along, column) for column in stroke.T], 1))
    return np.concatenate(pieces)

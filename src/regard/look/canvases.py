"""A drawing as it grows: a film strip as PNG, and an animated GIF; green frames show where it was read, red frames where it was written."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

READ, WRITE = (40, 160, 80), (210, 60, 60)
SIDE = 112  # pixels of the longer side of a frame
GAP = 4
MILLISECONDS = 350  # per frame


class Frame(NamedTuple):
    """A window on an image, in pixels counted from 1: its centre, its half side, and the width of its Gaussians."""

    x: float
    y: float
    half: float
    std: float


class Film(NamedTuple):
    """One image while it is drawn: pixels (T, h, w) or (T, h, w, 3), and the windows of each step, if there are any."""

    pixels: npt.NDArray[np.uint8]
    read: Sequence[Frame | None]
    write: Sequence[Frame | None]
    target: npt.NDArray[np.uint8] | None = None  # what it is a drawing of


def strip(films: Sequence[Film]) -> bytes:
    """A PNG: a row per film, a column per step; with targets, they are the first column."""
    with_target = any(film.target is not None for film in films)
    rows = []
    for film in films:
        steps = [_picture(*each) for each in zip(film.pixels, film.read, film.write, strict=True)]
        first = [] if not with_target else [_blank(steps[0]) if film.target is None else _picture(film.target, None, None)]
        rows.append([*first, *steps])
    return _saved(_tiled(rows), "PNG")


def animation(films: Sequence[Film]) -> bytes:
    """A GIF: all films side by side, a frame per step; the last one stays longer."""
    steps = []
    for t in range(len(films[0].pixels)):
        steps.append(_tiled([[_picture(film.pixels[t], film.read[t], film.write[t]) for film in films]]))
    steps.append(_tiled([[_picture(film.pixels[-1], None, None) for film in films]]))
    durations = [MILLISECONDS] * (len(steps) - 1) + [4 * MILLISECONDS]
    return _saved(steps[0], "GIF", save_all=True, append_images=steps[1:], duration=durations, loop=0)


def _picture(pixels: npt.NDArray[np.uint8], read: Frame | None, write: Frame | None) -> Image:
    from PIL import Image, ImageDraw

    scale = max(1, SIDE // max(pixels.shape[:2]))
    size = (pixels.shape[1] * scale, pixels.shape[0] * scale)
    image = Image.fromarray(pixels).convert("RGB").resize(size, Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    for frame, colour in ((read, READ), (write, WRITE)):
        if frame is not None:
            sides = [(at - 0.5 + sign * frame.half) * scale for sign in (-1, 1) for at in (frame.x, frame.y)]
            corners = [float(np.clip(side, 0, size[n % 2] - 1)) for n, side in enumerate(sides)]  # what is outside is shown at the edge
            draw.rectangle(corners, outline=colour, width=int(np.clip(round(frame.std), 1, 4)))
    return image


def _blank(like: Image) -> Image:
    from PIL import Image

    return Image.new("RGB", like.size, "white")


def _tiled(rows: Sequence[Sequence[Image]]) -> Image:
    from PIL import Image

    width, height = rows[0][0].size
    columns = max(map(len, rows))
    page = Image.new("RGB", (columns * (width + GAP) + GAP, len(rows) * (height + GAP) + GAP), "white")
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            page.paste(image, (GAP + c * (width + GAP), GAP + r * (height + GAP)))
    return page


def _saved(image: Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()

"""A drawing as it grows: a film strip as PNG, and an animated GIF; green frames show where it was read, red frames where it was written."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._extras import extra
from ..data.images import Pixels
from ..look.images import png_of, sheet

READ, WRITE = (40, 160, 80), (210, 60, 60)
SIDE = 112  # pixels of the longer side of a frame
MILLISECONDS = 350  # per frame


class Frame(NamedTuple):
    """A window on an image, in pixels counted from 1: its centre, its half side, and the width of its Gaussians."""

    x: float
    y: float
    half: float
    std: float


class Film(NamedTuple):
    """One image while it is drawn: pixels (T, h, w) or (T, h, w, 3), and the windows of each step, if there are any."""

    pixels: Pixels
    read: Sequence[Frame | None]
    write: Sequence[Frame | None]
    target: Pixels | None = None  # image that it is a drawing of


def strip(films: Sequence[Film]) -> bytes:
    """A PNG: a row per film, a column per step; with targets, they are the first column."""
    with_target, pictures = any(film.target is not None for film in films), list[Pixels]()
    for film in films:
        steps = [_picture(*each) for each in zip(film.pixels, film.read, film.write, strict=True)]
        first = [] if not with_target else [np.full_like(steps[0], 255) if film.target is None else _picture(film.target)]
        pictures += [*first, *steps]
    return png_of(sheet(pictures, len(pictures) // len(films)))


def animation(films: Sequence[Film]) -> bytes:
    """A GIF: all films side by side, a frame per step; the last one stays longer."""
    with extra("look"):
        from PIL import Image

    pictures = [[_picture(film.pixels[t], film.read[t], film.write[t]) for film in films] for t in range(len(films[0].pixels))]
    pictures.append([_picture(film.pixels[-1]) for film in films])
    steps = [Image.fromarray(sheet(row, len(row))) for row in pictures]
    durations, file = [MILLISECONDS] * (len(steps) - 1) + [4 * MILLISECONDS], io.BytesIO()
    steps[0].save(file, "GIF", save_all=True, append_images=steps[1:], duration=durations, loop=0)
    return file.getvalue()


def _picture(pixels: Pixels, read: Frame | None = None, write: Frame | None = None) -> Pixels:
    with extra("look"):
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
    return np.asarray(image)

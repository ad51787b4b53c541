"""Images as PNG, as URLs for pages, and several of them on one sheet."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from .._extras import extra
from ..errors import ShapeError

GAP = 6  # pixels between the images of a sheet


def png_of(image: Any) -> bytes:
    """An image, uint8 of shape (h, w) or (h, w, 3), as PNG."""
    with extra("look"):
        from PIL import Image

    file = io.BytesIO()
    Image.fromarray(check_image(image)).save(file, "PNG")
    return file.getvalue()


def data_url(image: Any) -> str:
    """An image as a `data:` URL, for pages."""
    return f"data:image/png;base64,{base64.b64encode(png_of(image)).decode()}"


def check_image(image: Any) -> npt.NDArray[np.uint8]:
    """The image as an array, or an error that says what is expected."""
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise ShapeError(f"an image of shape {array.shape} and {array.dtype}; expected uint8 of shape (h, w) or (h, w, 3)")
    return array


def enlarge(image: npt.NDArray[np.uint8], height: int) -> npt.NDArray[np.uint8]:
    """Repeat the pixels of an image as often as it fits into this height."""
    scale = max(1, height // image.shape[0])
    return image.repeat(scale, 0).repeat(scale, 1)


def sheet(images: Sequence[npt.NDArray[np.uint8]], columns: int | None = None, gap: int = GAP) -> npt.NDArray[np.uint8]:
    """Images of one size row by row, white between and around them.

    Args:
        images: uint8 of shape (h, w) or (h, w, 3).
        columns: images per row; as nearly square as possible if not given.
        gap: pixels between and around the images.
    """
    columns = columns or isqrt(len(images) - 1) + 1
    height, width = images[0].shape[:2]
    size = -(-len(images) // columns) * (height + gap) + gap, columns * (width + gap) + gap
    whole = np.full((*size, *images[0].shape[2:]), 255, dtype=np.uint8)
    for n, image in enumerate(images):
        top, left = gap + n // columns * (height + gap), gap + n % columns * (width + gap)
        whole[top : top + height, left : left + width] = image
    return whole

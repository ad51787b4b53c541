"""The image that keys are patches of: as an array, as PNG, and as a URL for pages."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShapeError


def png_of(image: Any) -> bytes:
    """An image, uint8 of shape (h, w) or (h, w, 3), as PNG."""
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

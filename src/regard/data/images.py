"""Image files, read through Pillow under one policy.

    read_image("photo.jpg")                   uint8 of shape (h, w, 3)
    read_image("scan.png", channels=1)        uint8 of shape (h, w), grey

| in the file | what becomes of it |
|---|---|
| EXIF rotation | applied |
| transparency | laid over white |
| palette, CMYK, 1 bit | converted to RGB or grey |
| 16 bits per channel | scaled to 8 |
| several frames | the first; `read_frames` has all |
| more than 50 million pixels, or 256 MiB | refused before it is decoded |
| truncated, or no image whatever its name | refused, with the name of the file |
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from .. import files
from .._extras import extra
from ..errors import BadFile

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
Channels = Literal[1, 3]
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MAX_BYTES = 256 << 20
MAX_PIXELS = 50_000_000
MAX_FRAMES = 10_000


def read_image(path: Path | str, channels: Channels = 3) -> Pixels:
    """The pixels of an image file: (h, w, 3), or (h, w) for one channel."""
    return decode_image(files.read(Path(path), MAX_BYTES), str(path), channels)


def decode_image(content: bytes, name: str, channels: Channels = 3) -> Pixels:
    """The pixels of an image file that is in memory; `name` is for error messages."""
    with _decoded(content, name) as image:
        return _pixels(image, channels)


def image_shape(content: bytes, name: str) -> tuple[int, int, Channels]:
    """Height, width and channels of an image file, from its header; 1 channel if it is grey."""
    with _decoded(content, name) as image:
        exif = image.getexif() if image.format != "PNG" or "exif" in image.info else {}  # of PNG it may come last: all is decoded for it
        turned = exif.get(0x0112, 1) in (5, 6, 7, 8)  # orientation: rows and columns are exchanged
        height, width = (image.width, image.height) if turned else (image.height, image.width)
        return height, width, 1 if image.mode in ("1", "L", "LA", "I", "I;16", "I;16B", "F") else 3


def read_frames(path: Path | str, channels: Channels = 3) -> Pixels:
    """All frames of an animation, (frames, h, w, 3) or (frames, h, w); a still image has one."""
    with extra("data"):
        from PIL import ImageSequence

    with _decoded(files.read(Path(path), MAX_BYTES), str(path)) as image:
        count = getattr(image, "n_frames", 1)
        if count > MAX_FRAMES or count * image.width * image.height > MAX_PIXELS:
            raise BadFile(
                f"{path}: {count:,} frames of {image.width} × {image.height} pixels; expected at most {MAX_PIXELS:,} pixels in all"
            )
        return np.stack([_pixels(frame, channels) for frame in ImageSequence.Iterator(image)])


def resize(pixels: Pixels, height: int, width: int, resample: Literal["bilinear", "bicubic", "nearest", "lanczos"] = "bilinear") -> Pixels:
    """The image at another size; down-sampling averages."""
    with extra("data"):
        from PIL import Image

    if pixels.shape[:2] == (height, width):
        return pixels
    filters = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    kind = filters.get(resample, Image.Resampling.LANCZOS)
    return np.asarray(Image.fromarray(pixels).resize((width, height), kind))


@contextmanager
def _decoded(content: bytes, path: str) -> Iterator[Image]:
    """The image of a file, its header checked; whatever goes wrong inside is one line with the name of the file."""
    with extra("data"):
        from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow only warns of damage
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise BadFile(f"{path}: {image.width:,} × {image.height:,} pixels; expected at most {MAX_PIXELS:,}")
                yield image
    except BadFile:
        raise
    except Image.UnidentifiedImageError as wrong:
        raise BadFile(f"{path}: not an image that can be read; expected one of {', '.join(FORMATS)}") from wrong
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as wrong:
        raise BadFile(f"{path}: more than {MAX_PIXELS:,} pixels") from wrong
    except (OSError, SyntaxError, ValueError, IndexError, KeyError, EOFError, MemoryError, Warning) as wrong:
        raise BadFile(f"{path}: a damaged image: {' '.join(str(wrong).split()) or type(wrong).__name__}") from wrong


def _pixels(image: Image, channels: Channels) -> Pixels:
    with extra("data"):
        from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):  # 16 bits per channel, or 32
        wide = np.asarray(image).astype(np.float64)
        image = Image.fromarray((wide / 257 if wide.max(initial=0) > 255 else wide).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("L" if channels == 1 else "RGB"))

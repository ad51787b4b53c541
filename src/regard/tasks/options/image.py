"""Options of tasks on images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ...bounds import Probability
from ...errors import NotSupported
from .shared import DataOptions, OnError

Side = Annotated[int, Meta(ge=4, le=1024)]  # of an image, in pixels


@dataclass(frozen=True, kw_only=True)
class ImageOptions(DataOptions):
    """Images and their size."""

    on_error: OnError = "stop"
    """Files that are not images: stop with the name of the file, or skip and count them."""
    image_size: tuple[Side, ...] = ()
    """Height and width in pixels, or one number for both (default: that of the images)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.image_size) > 2:
            raise NotSupported(f"--image-size {' '.join(map(str, self.image_size))}: expected height and width, or one number for both")

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.image_size[0], self.image_size[-1]) if self.image_size else None


@dataclass(frozen=True, kw_only=True)
class PictureOptions(ImageOptions):
    """Pictures to classify."""

    label_smoothing: Probability = 0.0
    """Label smoothing: probability mass spread uniformly over all classes."""

"""Images in and out of an autoregressive model: pixels as whole numbers 0 … levels − 1, the image of low resolution, and images side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ..data.images import Channels, Pixels, read_image, resize
from ..errors import BadFile
from ..files import read_json, write_json

FILE = "pixels.json"


@dataclass(frozen=True, kw_only=True)
class PixelProcessor:
    """Image files to pixels_BHWC of `levels` values, and back; `factor` is that of super-resolution, 1 without."""

    size: tuple[int, int]  # height and width
    channels: Channels
    levels: int
    factor: int = 1

    @property
    def source_size(self) -> tuple[int, int] | None:
        """Size of the image of low resolution."""
        return None if self.factor == 1 else (self.size[0] // self.factor, self.size[1] // self.factor)

    def fit(self, pixels: Pixels) -> Pixels:
        """Pixels at the size of the model."""
        return resize(pixels, *self.size)

    def read(self, path: Path | str) -> Pixels:
        """Pixels of a file at the size of the model."""
        return self.fit(read_image(path, self.channels))

    def read_pixels(self, path: Path | str) -> Tensor:
        """pixels_1HWC of a file."""
        return self.encode([self.read(path)])

    def read_source(self, path: Path | str) -> Tensor | None:
        """pixels_1HWC of a file that is as small as an image of low resolution; None if it is larger."""
        pixels = read_image(path, self.channels)
        return self.encode([pixels]) if pixels.shape[:2] == self.source_size else None

    def encode(self, pixels: Pixels | Sequence[Pixels]) -> Tensor:
        """pixels_BHWC of the model, from bytes."""
        x = torch.from_numpy(np.array(pixels, dtype=np.float32))
        x = (x * ((self.levels - 1) / 255)).round().long()
        return x.unsqueeze(-1) if self.channels == 1 else x

    def decode(self, pixels_BHWC: Tensor) -> Pixels:
        """Bytes, from pixels of the model."""
        x = (pixels_BHWC.float() * (255 / (self.levels - 1))).round().byte().numpy()
        return cast(Pixels, x[..., 0] if self.channels == 1 else x)

    def source(self, pixels_BHWC: Tensor) -> Tensor | None:
        """The image of low resolution: means of blocks of factor × factor pixels; None without super-resolution."""
        if self.factor == 1:
            return None
        rows = pixels_BHWC.unflatten(1, (-1, self.factor)).unflatten(3, (-1, self.factor))
        return rows.float().mean((2, 4)).round().long()

    def save(self, folder: Path) -> None:
        plain = {"size": list(self.size), "channels": self.channels, "levels": self.levels, "factor": self.factor}
        write_json(folder / FILE, plain)

    @classmethod
    def load(cls, folder: Path) -> PixelProcessor:
        """Read what `save` wrote."""
        path = folder / FILE
        plain = read_json(path)
        try:
            height, width = map(int, plain["size"])
            channels, levels, factor = (int(plain[name]) for name in ("channels", "levels", "factor"))
        except (KeyError, TypeError, ValueError, OverflowError) as wrong:
            raise BadFile(f"{path}: expected size (height and width), channels, levels and factor") from wrong
        fits = channels in (1, 3) and 2 <= levels <= 256 and factor >= 1 and 1 <= min(height, width) <= max(height, width) <= 4096
        if not fits or height % factor or width % factor:
            raise BadFile(
                f"{path}: {height} × {width} pixels of {channels} channels and {levels} levels, factor {factor}; these do not fit"
            )
        return cls(size=(height, width), channels=cast(Channels, channels), levels=levels, factor=factor)


def count_levels(images: Pixels) -> int:
    """Levels: as many as the images have, if these are evenly spaced from 0 to 255; else 256."""
    found = np.unique(images)
    even = np.round(np.arange(len(found)) * 255 / max(1, len(found) - 1)).astype(np.uint8)
    return len(found) if len(found) > 1 and bool((even == found).all()) else 256

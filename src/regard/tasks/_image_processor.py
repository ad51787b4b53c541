"""Images in and out of a model: size, channels and normalisation, saved with a run under the names that transformers uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from ..data.images import Channels, Pixels, read_image, resize
from ..errors import BadFile
from ..files import read_json, write_json

RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic"]
FILE = "preprocessor_config.json"


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """Any image file to x_CHW, and back to pixels: resized to `size` (height, width), then (x / 255 − mean) / std."""

    size: tuple[int, int]
    channels: Channels = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    resample: Resample = "bilinear"
    labels: tuple[str, ...] = ()

    @classmethod
    def of_pixels(cls, images: Sequence[Pixels], labels: Sequence[str] = (), size: tuple[int, int] | None = None) -> ImageProcessor:
        """One whose mean and std are those of these images (of at most 2,000 of them)."""
        first = np.asarray(images[0])
        channels: Channels = 3 if first.ndim == 3 else 1
        some = images[:: max(1, len(images) // 2000)]
        flat = np.concatenate([np.asarray(one).reshape(-1, channels) for one in some]).astype(np.float32) / 255
        mean, std = (tuple(round(float(x), 4) for x in xs) for xs in (flat.mean(0), flat.std(0).clip(min=0.01)))
        return cls(size=size or (first.shape[0], first.shape[1]), channels=channels, mean=mean, std=std, labels=tuple(labels))

    def read(self, path: Path | str) -> Pixels:
        """The pixels of a file at the size of the model."""
        return self.fit(read_image(path, self.channels))

    def fit(self, pixels: Pixels) -> Pixels:
        """Pixels at the size of the model."""
        return resize(pixels, *self.size, self.resample)

    def encode(self, pixels: Pixels | Sequence[Pixels]) -> Tensor:
        """x_CHW of an image, or x_BCHW of several of one size."""
        x = torch.from_numpy(np.array(pixels, dtype=np.float32) / 255)
        x = x.unsqueeze(-1) if self.channels == 1 else x
        return ((x - torch.tensor(self.mean)) / torch.tensor(self.std)).movedim(-1, -3).contiguous()

    def decode(self, x_CHW: Tensor) -> Pixels:
        """The pixels of a tensor: what `encode` was given."""
        x = x_CHW.detach().float().movedim(-3, -1) * torch.tensor(self.std) + torch.tensor(self.mean)
        pixels = (x * 255).round().clamp(0, 255).byte().numpy()
        return cast(Pixels, pixels[..., 0] if self.channels == 1 else pixels)

    def save(self, folder: Path) -> None:
        height, width = self.size
        plain: dict[str, Any] = {
            "do_resize": True,
            "size": {"height": height, "width": width},
            "resample": next(number for number, name in RESAMPLE.items() if name == self.resample),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        write_json(folder / FILE, plain, indent=2)
        if self.labels:
            write_json(folder / "labels.json", self.labels, indent=0)

    @classmethod
    def load(cls, folder: Path) -> ImageProcessor:
        """What `save` wrote."""
        path, labels = folder / FILE, folder / "labels.json"
        plain, names = read_json(path), read_json(labels) if labels.exists() else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadFile(f"{labels}: expected a list of names")
        try:
            size = int(plain["size"]["height"]), int(plain["size"]["width"])
            mean, std = (tuple(map(float, plain[key])) for key in ("image_mean", "image_std"))
            resample = cast(Resample, RESAMPLE[plain.get("resample", 2)])
        except (KeyError, TypeError, ValueError) as wrong:
            raise BadFile(f"{path}: expected size (height and width), image_mean, image_std and resample") from wrong
        if len(mean) != len(std) or len(mean) not in (1, 3) or min(*size, *std) <= 0 or max(size) > 8192:
            raise BadFile(
                f"{path}: size {size}, {len(mean)} means and {len(std)} deviations; expected 1 or 3 channels and positive numbers"
            )
        return cls(size=size, channels=1 if len(mean) == 1 else 3, mean=mean, std=std, resample=resample, labels=tuple(names))

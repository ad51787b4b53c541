"""Images in and out of a model: size, channels and normalisation, saved with a run under the names that transformers uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
FILE, LABELS = "preprocessor_config.json", "labels.json"


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """Any image file to x_CHW, and back to pixels: resized to `size` (height, width), then (x / 255 − mean) / std.

    With `shortest_edge` the shorter side is resized to that many pixels, and the centre of `size` cut out: nothing is distorted.
    """

    size: tuple[int, int]  # height and width that the model reads
    channels: Channels = 3  # 3: RGB; 1: grey
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # per channel, of values from 0 to 1
    std: tuple[float, ...] = (0.5, 0.5, 0.5)  # per channel, alike
    resample: Resample = "bilinear"  # interpolation when resizing
    labels: tuple[str, ...] = ()  # names of the classes, of a classifier
    shortest_edge: int | None = None  # pixels of the shorter side before the centre is cut out; None: resized as a whole

    @classmethod
    def of_pixels(cls, images: Sequence[Pixels], labels: Sequence[str] = (), size: tuple[int, int] | None = None) -> ImageProcessor:
        """One whose mean and std are those of these images (of at most 2,000 of them).

        Args:
            images: images of the training part.
            labels: names of the classes.
            size: height and width; None: those of the first image.
        """
        first = np.asarray(images[0])
        channels: Channels = 3 if first.ndim == 3 else 1
        some = images[:: max(1, len(images) // 2000)]
        flat = np.concatenate([np.asarray(one).reshape(-1, channels) for one in some]).astype(np.float32) / 255
        mean, std = (tuple(round(float(x), 4) for x in xs) for xs in (flat.mean(0), flat.std(0).clip(min=0.01)))
        return cls(size=size or (first.shape[0], first.shape[1]), channels=channels, mean=mean, std=std, labels=tuple(labels))

    def resized(self, size: tuple[int, int]) -> ImageProcessor:
        """A processor for images of another size."""
        edge = None if self.shortest_edge is None else round(self.shortest_edge * min(size) / min(self.size))
        return replace(self, size=size, shortest_edge=edge)

    def with_labels(self, labels: Sequence[str]) -> ImageProcessor:
        """A processor with other names of classes."""
        return replace(self, labels=tuple(labels))

    def read(self, path: Path | str) -> Pixels:
        """The pixels of a file at the size of the model."""
        return self.fit(read_image(path, self.channels))

    def fit(self, pixels: Pixels) -> Pixels:
        """Pixels at the size of the model."""
        if self.shortest_edge is None:
            return resize(pixels, *self.size, self.resample)
        (height, width), edge = pixels.shape[:2], self.shortest_edge
        shorter = min(height, width)
        pixels = resize(pixels, int(edge * height / shorter), int(edge * width / shorter), self.resample)
        missing = [max(0, wanted - there) for wanted, there in zip(self.size, pixels.shape[:2], strict=True)]
        around = [(-(-more // 2), more // 2) for more in missing] + [(0, 0)] * (pixels.ndim - 2)
        pixels = np.pad(pixels, around)  # black, where the centre is larger than the image
        top, left = ((there - wanted) // 2 for wanted, there in zip(self.size, pixels.shape[:2], strict=True))
        return pixels[top : top + self.size[0], left : left + self.size[1]]

    def encode(self, pixels: Pixels | Sequence[Pixels]) -> Tensor:
        """x_CHW of an image, or x_BCHW of several of one size."""
        return self.normalise(self.channels_first(np.asarray(pixels)))

    def channels_first(self, pixels: Pixels) -> Tensor:
        """Bytes, x_CHW or x_BCHW."""
        x = torch.from_numpy(np.array(pixels))
        return x.unsqueeze(-3) if self.channels == 1 else x.movedim(-1, -3).contiguous()

    def normalise(self, x_CHW: Tensor) -> Tensor:
        """Bytes as floats: (x / 255 − mean) / std per channel."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (x_CHW.float() / 255 - mean) / std

    def decode(self, x_CHW: Tensor) -> Pixels:
        """The pixels of a tensor: what `encode` was given."""
        x = x_CHW.detach().float().movedim(-3, -1) * torch.tensor(self.std) + torch.tensor(self.mean)
        pixels = (x * 255).round().clamp(0, 255).byte().numpy()
        return cast(Pixels, pixels[..., 0] if self.channels == 1 else pixels)

    def save(self, folder: Path) -> None:
        height, width = self.size
        whole = {"height": height, "width": width}
        cropped: dict[str, Any] = {"size": {"shortest_edge": self.shortest_edge}, "do_center_crop": True, "crop_size": whole}
        plain: dict[str, Any] = {
            "image_processor_type": "ViTImageProcessor" if self.shortest_edge is None else "CLIPImageProcessor",
            "do_resize": True,
            **({"size": whole, "do_center_crop": False} if self.shortest_edge is None else cropped),
            "resample": next(number for number, name in RESAMPLE.items() if name == self.resample),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        write_json(folder / FILE, plain, indent=2)
        if self.labels:
            write_json(folder / LABELS, self.labels, indent=0)

    @classmethod
    def load(cls, folder: Path) -> ImageProcessor:
        """Read what `save` wrote, or an image processor of transformers."""
        path, labels = folder / FILE, folder / LABELS
        plain, names = read_json(path), read_json(labels) if labels.exists() else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadFile(f"{labels}: expected a list of names")
        try:
            edge, size = _sizes(plain)
            mean, std = (tuple(map(float, plain[key])) for key in ("image_mean", "image_std"))
            resample = cast(Resample, RESAMPLE[plain.get("resample", 2)])
            scale = float(plain.get("rescale_factor", 1 / 255))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as wrong:  # OverflowError: infinity as an integer
            raise BadFile(f"{path}: expected size (height and width, or shortest_edge), image_mean, image_std and resample") from wrong
        if not plain.get("do_normalize", True):
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        if plain.get("offset", plain.get("image_processor_type") == "VivitImageProcessor") and scale > 0:
            k = 255 * scale  # transformers' ViViT computes (k·x/255 − 1 − mean) / std, with k = 2
            mean, std, scale = tuple((1 + m) / k for m in mean), tuple(s / k for s in std), 1 / 255
        fits = len(mean) == len(std) and len(mean) in (1, 3) and all(map(math.isfinite, (*mean, *std)))
        if not fits or min(*size, *std) <= 0 or max(*size, edge or 0) > 8192:
            raise BadFile(
                f"{path}: size {size}, means {mean[:4]} and deviations {std[:4]}; expected 1 or 3 finite numbers each, and positive sizes and "
                "deviations"
            )
        if not plain.get("do_rescale", True) or abs(scale * 255 - 1) > 1e-6:
            raise BadFile(f"{path}: rescale_factor {scale}; only 1/255 is supported")
        channels: Channels = 1 if len(mean) == 1 else 3
        return cls(size=size, channels=channels, mean=mean, std=std, resample=resample, labels=tuple(names), shortest_edge=edge)

    @classmethod
    def find(cls, folder: Path) -> ImageProcessor | None:
        """Read it; None if there is no such file."""
        return cls.load(folder) if (folder / FILE).exists() else None


def _sizes(plain: dict[str, Any]) -> tuple[int | None, tuple[int, int]]:
    """The shortest edge, if the centre is cut out, and the size of the result. Older files have one number for a square."""
    size, crop = plain["size"], plain.get("crop_size") if plain.get("do_center_crop") else None
    if crop is None:
        return None, _both(size)
    return int(size["shortest_edge"] if isinstance(size, dict) else size), _both(crop)


def _both(size: Any) -> tuple[int, int]:
    return (int(size["height"]), int(size["width"])) if isinstance(size, dict) else (int(size), int(size))

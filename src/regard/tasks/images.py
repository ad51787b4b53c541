"""Image classification: a vision transformer or an MLP-Mixer, from scratch on small images, or from a pretrained checkpoint.

Small data need augmentation (`data.augment`), label smoothing and stochastic depth, or a transformer learns the images by heart. An
exponential moving average of the parameters is what is evaluated and kept (`train`'s `--ema`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.augment import Augmentation
from ..data.images import Pixels
from ..data.labelled_images import Part, read_labelled_images
from ..data.splits import Splits
from ..errors import NotSupported
from ..look import Indices, Layers, Maps, capture
from ..look.layouts import Grid
from ..models import SIZES, ImageEncoder, Model, device_of
from ..runs import Run
from .image_processor import ImageProcessor
from .image_task import ImageClassification, Picture, channels_of, label_gradients, likely_labels, patch_side
from .options import NoOptions
from .options.images import ImagesDeclaration, ImagesOptions
from .task import Start

ROLLOUT = "rollout"  # may be asked for like a layer


class Images(ImagesDeclaration, ImageClassification[ImagesOptions]):
    model_kind = ImageEncoder

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[Part]:
        return read_labelled_images(self.options.data, names=self.options.labels, **self.options.parts())

    def size(self, part: Part) -> tuple[int, int]:
        return self.options.size or default_size({part.images.shape(n)[:2] for n in part.numbers.tolist()})

    def make_processor(self, data: Splits[Part], base: ImageProcessor | None) -> ImageProcessor:
        train, found = data.train, {data.train.labels[n] for n in data.train.numbers}
        labels = self.label_names(found, self.options.labels)
        if base is not None:
            return base.resized(self.options.size or base.size).with_labels(base.labels if found == set(base.labels) else labels)
        channels = channels_of(train)
        size = self.size(train)
        some = train.numbers[:: max(1, len(train) // 2000)].tolist()
        return ImageProcessor.of_pixels([train.images.read(n, channels) for n in some], labels, size)

    def contents(self, data: Splits[Part]) -> Iterator[str]:
        return (part.images.key(n).hex() + part.labels[n] for part in data.parts for n in part.numbers)

    def batch(self, item: Sequence[Picture], generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        if generator is None:
            return super().batch(item, generator)
        augmentation = self.augmentation()
        x_BCHW = self.processor.channels_first(np.stack([one.pixels for one in item]))
        target_BN = F.one_hot(torch.tensor([one.label for one in item]), len(self.processor.labels)).float()
        return augmentation.mix(self.processor.normalise(augmentation.change(x_BCHW, generator)), target_BN, generator)

    def augmentation(self) -> Augmentation:
        """Augmentation of training images of this size."""
        o, p = self.options, self.processor
        crop = max(1, min(p.size) // 8) if o.crop is None else o.crop
        flip = p.channels == 3 if o.flip == "auto" else o.flip == "yes"
        return Augmentation(crop, flip, o.rand_augment, o.erase, o.mixup, o.cutmix)

    # -- model ---------------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        p = self.processor
        settings = {"image_size": p.size, "channels": p.channels, "classes": len(p.labels)}
        return settings if model in SIZES else {**settings, "patch_size": default_patch(p.size)}

    def adapt(self, body: Model, data: Splits[Any] | None = None, start: Start = "loaded") -> ImageEncoder:
        """Fit the model to images of this size and these classes: positions are interpolated, a head for other classes is new."""
        model, p = super().adapt(body, data, start), self.processor
        assert isinstance(model, ImageEncoder)
        if model.config.channels != p.channels:
            raise NotSupported(
                f"the model expects {model.config.channels}-channel images, the data has {p.channels}; train a new model, or convert the images"
            )
        if model.config.image_size != p.size:
            model = model.with_image_size(p.size)
        return model if model.config.classes == len(p.labels) else model.with_classes(len(p.labels))

    # -- use -----------------------------------------------------------------------------------------------------------

    def attention_maps(self, run: Run[ImageEncoder], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Attention over the patches, of layers or as their rollout (`layers="rollout"`); beside it the most likely labels."""
        p_N, maps = image_maps(run, run.processor.read(text), layers, heads)
        return "" if p_N is None else likely_labels(run.processor.labels, p_N, 3).text, maps


@torch.no_grad()
def image_maps(run: Run[ImageEncoder], pixels: Pixels, layers: Layers = None, heads: Indices = None) -> tuple[Tensor | None, Maps]:
    """Probability of each class, if there is a head, and maps over the patches of an image that has the size of the model."""
    model, x_BCHW = run.model, run.processor.encode([pixels]).to(device_of(run.model))
    with capture(model, None if layers == ROLLOUT else layers, heads) as maps:
        x_BLD = model.features(x_BCHW)
    grid, prefix = model.config.grid, model.class_tokens
    names = [*(["class"] if prefix else []), *(f"{row},{column}" for row in range(grid[0]) for column in range(grid[1]))]
    maps.image = pixels
    maps = maps.label(names, names, Grid(*grid, prefix_tokens=prefix))
    if layers == ROLLOUT:
        maps = Maps(maps.with_rollout(ROLLOUT)[ROLLOUT], image=pixels)
    if model.output is None:
        return None, maps
    logits_1N = model.output(model.pooled(x_BLD))
    maps.gradients = label_gradients(model, x_BCHW, logits_1N, run.processor.labels, maps.layers)
    return logits_1N[0].softmax(-1).cpu(), maps


def default_size(sizes: set[tuple[int, int]]) -> tuple[int, int]:
    """Size of the images if all have the same, up to 64 pixels; else 64 × 64. Rounded up to whole patches."""
    first = next(iter(sizes))
    height, width = first if len(sizes) == 1 and max(first) <= 64 else (64, 64)
    patch = _patch(max(height, width))
    return math.ceil(height / patch) * patch, math.ceil(width / patch) * patch


def _patch(side: int) -> int:
    return 2 if side <= 16 else 4 if side <= 48 else 8 if side <= 112 else 16


def default_patch(size: tuple[int, int]) -> tuple[int, int]:
    """Patches that make some 16 to 200 tokens of an image, and divide its height and width."""
    return patch_side(size, _patch(max(size)))

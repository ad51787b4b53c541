r"""Encoders of an image, which read it as a sequence of patches: features of each patch, one vector per image, and logits of its class.

$$x = \mathrm{blocks}(\mathrm{embed}(\mathrm{patches})) \qquad y = \mathrm{pool}(N(x)) \qquad \mathrm{logits} = W y + b$$

A model defines its embedding and its blocks (`_embedding`, `_block`) and what it pools (`pooled`); the rest is here.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from torch import Tensor, nn

from ..errors import BadConfig, NotSupported, ShapeError
from ..layers import Block, LayerNorm, init_xavier
from ..layers.positionwise import Norm
from .model import Count, Depth, Model, ModelConfig, Positive, Probability, Size


@dataclass(frozen=True, kw_only=True)
class ImageEncoderConfig(ModelConfig):
    image_size: tuple[Size, Size] = (224, 224)  # height and width in pixels; one number for a square
    patch_size: tuple[Size, Size] = (16, 16)  # height and width of a patch
    channels: Size = 3  # 3: RGB, 1: grey
    classes: Count = 0  # number of classes; 0: no classification head
    width: Size = 128  # width of the model: features per patch between layers
    depth: Depth = 6  # number of layers
    hidden: Size = 512  # width inside the feed-forward layers
    dropout: Probability = 0.0  # dropout rate
    drop_path: Probability = 0.0  # rate of stochastic depth in the last layer; it grows linearly from 0 in the first
    eps: Positive = 1e-6  # epsilon of the layer norms
    stem: tuple[Size, ...] = ()  # channels per stage of a convolutional stem before the patches, each halving height and width: the hybrid

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size % patch for size, patch in zip(self.image_size, self.patch_size, strict=True)):
            raise BadConfig(f"{type(self).__name__}: image_size={self.image_size}; expected multiples of patch_size={self.patch_size}")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches per column and per row."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]


class PatchEncoder(Model):
    """Base of encoders of images and of clips: an embedding, blocks, a norm, and a classification head over one pooled vector.

    Shape: x_BCHW → logits_BN; clips are x_BTCHW.
    """

    config: ImageEncoderConfig
    length_setting: ClassVar[str] = "image_size"

    def _build(self) -> None:
        c = self.config
        self.embedding = self._embedding()
        self.blocks = nn.ModuleList(self._block(layer) for layer in range(c.depth))
        self.norm = LayerNorm(c.width, eps=c.eps)
        self.output = nn.Linear(c.width, c.classes) if c.classes else None
        init_xavier(self)  # as in the paper; with normal(0.02) a small model still had 0.69 of Fashion-MNIST right after an epoch

    def _embedding(self) -> nn.Module:
        """Images or clips to tokens x_BLD."""
        raise NotImplementedError

    def _block(self, layer: int) -> Block:
        """One layer of the stack."""
        raise NotImplementedError

    def _drop_path(self, layer: int) -> float:
        """The rate of stochastic depth of a layer."""
        return self.config.drop_path * layer / max(self.config.depth - 1, 1)

    @property
    def _norm(self) -> Norm:
        return partial(LayerNorm, eps=self.config.eps)

    @property
    def class_tokens(self) -> int:
        """Tokens before those of the patches."""
        return 0

    def features(self, x: Tensor) -> Tensor:
        """x_BLD of every token; those of patches are in raster order, after `class_tokens` others."""
        self.check(x)
        x_BLD = self.embedding(x)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.norm(x_BLD)

    def check(self, x: Tensor) -> None:
        """Raise an error for inputs of another size than the model's."""
        raise NotImplementedError

    def pooled(self, x_BLD: Tensor) -> Tensor:
        """One vector per image or clip, y_BD, from its features: what the classification head reads."""
        return x_BLD.mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """logits_BN of the classes."""
        if self.output is None:
            raise NotSupported(f"this {type(self).__name__} has no classification head; build it with classes=…, or call with_classes")
        return self.output(self.pooled(self.features(x)))

    def with_classes(self, classes: int) -> Self:
        """A copy with a new classification head for this many classes; all other parameters are copied."""
        model = deepcopy(self)
        model.config = replace(self.config, classes=classes)
        like = self.norm.weight
        model.output = nn.Linear(self.config.width, classes, device=like.device, dtype=like.dtype) if classes else None
        if model.output is not None:
            init_xavier(model.output)
        return model


class ImageEncoder(PatchEncoder):
    """Reads an image x_BCHW: features of each token, a vector per image, logits of its class."""

    @property
    def max_length(self) -> int:
        """Tokens per image."""
        return self.config.grid[0] * self.config.grid[1] + self.class_tokens

    def check(self, x_BCHW: Tensor) -> None:
        """Raise an error for images of another size than the model's."""
        wanted = (self.config.channels, *self.config.image_size)
        if x_BCHW.dim() != 4 or tuple(x_BCHW.shape[1:]) != wanted:
            raise ShapeError(
                f"{type(self).__name__} takes images (batch, channels, height, width) of (…, {', '.join(map(str, wanted))}), got "
                f"{tuple(x_BCHW.shape)}; resize them, or the model by with_image_size"
            )

    def with_image_size(self, image_size: tuple[int, int]) -> Self:
        """A copy for images of another height and width; what depends on the number of patches is interpolated."""
        raise NotSupported(f"{self.facts.name} is built for images of {self.config.image_size} only; train one for {image_size}")

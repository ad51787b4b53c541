"""Options of the task draw: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ...bounds import Bounded, Seed, Size
from ...train.options import TrainOptions
from .image import ImageOptions
from .shared import Declaration, Files


@dataclass(frozen=True, kw_only=True)
class DrawOptions(ImageOptions):
    """Images."""

    data: Files = "digits"
    """Folder with a folder of images per class, or with IDX files (MNIST); .npz; images.npy labels.npy; or digits, which is embedded."""
    image_size: tuple[Annotated[int, Meta(ge=4, le=256)], ...] = ()
    """Height and width in pixels, or one number for both (default: that of the first image, 24 to 64)."""
    binary: bool = True
    """Pixels are black or white, as the Bernoulli likelihood assumes; --no-binary: grey levels are treated as probabilities; the loss is then no log-likelihood."""
    batch_size: Size = 64
    """Images per batch."""


@dataclass(frozen=True, kw_only=True)
class RedrawOptions(Bounded):
    """Images drawn beside the input."""

    samples: Annotated[int, Meta(ge=0, le=64)] = 3
    """New images, drawn from noise."""
    seed: Seed = 0
    """Random seed."""


class DrawTaskDeclaration(Declaration):
    """Train DRAW: a network that draws images step by step.

    As in:  regard train draw --out runs/draw
            regard train draw --data mnist --out runs/mnist --set glimpses=16
            regard train draw --out runs/whole --set attention=none
    """

    name = "draw"
    Options = DrawOptions
    PredictOptions = RedrawOptions
    default_model = "draw"
    default_train = TrainOptions(steps=3000, lr=4e-3, schedule="cosine", average=0, clip=5.0)
    main_options = ("image_size",)

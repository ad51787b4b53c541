"""Options of the task pixels: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ...bounds import Bounded, Fraction, NonNegative, Seed, Size
from ...train.options import TrainOptions
from .image import ImageOptions
from .shared import Declaration, Files


@dataclass(frozen=True, kw_only=True)
class PixelsOptions(ImageOptions):
    """Images, and what is to be learned about them."""

    data: Files = "digits"
    """Images: a folder, IDX files (MNIST), .npz or .npy; digits: 1,797 embedded images of 8 × 8 pixels."""
    grey: bool = False
    """Read colours as grey."""
    levels: Annotated[int, Meta(ge=2, le=256)] | None = None
    """Values per channel, 2 to 256; if not given, those of the images where they are evenly spaced, else 256."""
    super_resolution: Size = 1
    """Upscaling factor, e.g. 4; 1 trains an unconditional model."""
    batch_size: Size = 32
    """Images per batch."""


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(Bounded):
    """Part of the image that is given, and how the rest is drawn."""

    keep: Fraction | None = None
    """Fraction of the image, from the top, to condition on (default 0.5; 0 for super-resolution)."""
    samples: Annotated[int, Meta(ge=1, le=64)] = 4
    """Images drawn per input."""
    temperature: NonNegative = 1.0
    """Sampling temperature of the pixels; 0 is greedy."""
    seed: Seed = 0
    """Random seed of the samples."""


@dataclass(frozen=True, kw_only=True)
class PixelLookOptions:
    """Pixel whose attention is shown."""

    pixel: tuple[int, int] | None = None
    """Row and column, from 0, of the pixel that attends; some of the image if not given."""


class PixelsTaskDeclaration(Declaration):
    """Train an autoregressive image model: for densities, completion and super-resolution.

    As in:  regard train pixels --out runs/pixels
            regard train pixels --data fashion-mnist --set output=logistics --set attention=image_2d --out runs/fashion
            regard train pixels --super-resolution 4 --out runs/sharper
    """

    name = "pixels"
    Options = PixelsOptions
    PredictOptions = CompletionOptions
    LookOptions = PixelLookOptions
    default_model = "image_transformer"
    default_train = TrainOptions(epochs=20, optimizer="muon", lr=2e-2, schedule="cosine", warmup_steps=None, average=0)
    main_options = ("image_size", "super_resolution")

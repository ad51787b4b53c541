"""Options of the task dalle: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ...bounds import Bounded, NonNegative, Positive, Seed
from ...train.options import TrainOptions
from .image_text import ImageTextOptions
from .shared import Declaration, Files


@dataclass(frozen=True, kw_only=True)
class DalleOptions(ImageTextOptions):
    """Images, captions, tokens, and the terms of the loss."""

    data: Files = "scenes:count=2000,size=16,objects=1,colours=4,shapes=3"
    """A .csv (file, caption), COCO's captions .json, a folder with captions.csv or .json, or scenes:count=2000,size=16, generated."""
    vae_share: Annotated[float, Meta(gt=0, lt=1)] = 0.4
    """Share of the training in which the discrete VAE is trained; the transformer is trained in the rest."""
    kl: NonNegative = 0.02
    """Weight β of the VAE's KL term, at its end."""
    image_weight: Positive = 7.0
    """Weight of the image tokens in the loss; that of the text is 1."""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Bounded):
    """Drawing."""

    n: Annotated[int, Meta(ge=1, le=512)] = 1
    """Images to draw per text; several are put in one PNG, best first with --rank-by."""
    rank_by: str | None = None
    """A run of the task clip: images are ranked by how well they fit the text."""
    temperature: NonNegative = 1.0
    """Sampling temperature of the image codes; 0 is greedy."""
    seed: Seed = 0
    """Random seed."""


class DalleDeclaration(Declaration):
    """Train DALL·E: text-to-image generation.

    As in:  regard train dalle --out runs/dalle --minutes 10
            regard train dalle --data captions.csv --images photos --image-size 64 --out runs/mine --minutes 120
            regard predict runs/dalle "a red circle left of a blue square" --n 16 --rank-by runs/clip
    """

    name = "dalle"
    Options = DalleOptions
    PredictOptions = GenerateOptions
    LookOptions = GenerateOptions
    default_model = "dalle"
    default_train = TrainOptions(lr=2e-3, epochs=60, schedule="wsd", average=0)
    main_options = ("images", "image_size")

"""Options of the task clip: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ...errors import BadConfig
from ...train.options import TrainOptions
from .image_text import ImageTextOptions
from .shared import Declaration


@dataclass(frozen=True, kw_only=True)
class ClipOptions(ImageTextOptions):
    """Images, captions and tokens."""

    batch_size: Annotated[int, Meta(ge=2)] = 128
    """Pairs per batch: each is compared with all others."""


@dataclass(frozen=True, kw_only=True)
class ZeroShotOptions:
    """Classes, and how they become sentences."""

    classes: tuple[str, ...] = ()
    """Names of the classes; if none are given, captions of the training data, or of generated scenes their colours and shapes."""
    templates: tuple[str, ...] = ("a {}",)
    """Sentences with {} for the class; the vectors of several are averaged: "a photo of a {}" "a drawing of a {}"."""

    def __post_init__(self) -> None:
        if not self.templates or not all("{}" in one for one in self.templates):
            raise BadConfig(f"templates {self.templates}: expected sentences with {{}} for the name of the class")

    def prompts(self, name: str) -> list[str]:
        return [template.replace("{}", name) for template in self.templates]


class ClipDeclaration(Declaration):
    """Train CLIP: joint image–text embeddings, to search by words and to classify without examples.

    As in:  regard train clip --out runs/clip --minutes 5
            regard train clip --data captions.csv --images photos --image-size 64 --out runs/mine --minutes 60
            regard predict runs/mine photo.jpg --classes dog cat house --templates "a photo of a {}"
    """

    name = "clip"
    Options = ClipOptions
    EvaluateOptions = ZeroShotOptions
    PredictOptions = ZeroShotOptions
    default_model = "clip"
    default_train = TrainOptions(lr=1e-3, epochs=20, schedule="cosine", weight_decay=0.1)
    main_options = ("images", "image_size")

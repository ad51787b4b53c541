"""Options of the task captions: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from ...bounds import Count, Fraction, NonNegative, Size
from ...train.options import TrainOptions
from .image_text import ImageTextOptions
from .shared import BeamOptions, Declaration, GreedyOptions


@dataclass(frozen=True, kw_only=True)
class CaptionsOptions(ImageTextOptions):
    """Images, captions, tokens, and the terms of the loss."""

    coverage: NonNegative = 0.0
    """Weight λ of the doubly stochastic penalty, for soft attention."""
    reinforce: float = 0.1
    """Weight λ_r of REINFORCE, for hard attention."""
    entropy: NonNegative = 0.01
    """Weight λ_e of the entropy of the attention weights, for hard attention."""
    soft_share: Fraction = 0.5
    """Share of the images that read the average of all cells, for hard attention."""
    soft_epochs: Count = 2
    """Epochs in which all images read the average, before cells are sampled, for hard attention."""
    valid_images: Size = 200
    """Validation images that are described at each evaluation."""


class CaptioningDeclaration(Declaration):
    """Train an image captioner, and see where it looks for each word.

    As in:  regard train captions --out runs/scenes --minutes 3
            regard train captions --data captions.csv --images photos --image-size 64 --out runs/mine --minutes 30
            regard look runs/mine photo.jpg --png words.png
    """

    name = "captions"
    Options = CaptionsOptions
    EvaluateOptions = BeamOptions
    PredictOptions = BeamOptions
    LookOptions = GreedyOptions
    default_model = "show_attend_tell"
    default_train = TrainOptions(lr=2e-3, warmup_steps=50, epochs=15)
    main_options = ("images", "image_size")

"""Options of the task handwriting: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ...bounds import Bounded, Seed, Size
from ...train.options import TrainOptions
from .shared import DataOptions, Declaration, Files

MAX_POINTS = 100_000  # as `data.strokes` limits a sequence


@dataclass(frozen=True, kw_only=True)
class HandwritingOptions(DataOptions):
    """Strokes."""

    data: Files = "hershey:scripts"
    """Folder of IAM-OnDB .xml files, an .npz or .npy file of (dx, dy, lifted) rows, or an embedded source such as hershey:futural,count=2000."""
    text: bool = True
    """Condition on text (synthesis network); --no-text: unconditional prediction network."""
    max_points: Annotated[int, Meta(ge=2, le=MAX_POINTS)] = 1000
    """Longest line, in points; longer ones are left out."""
    batch_size: Size = 32
    """Lines per batch."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Bounded):
    """Hand to write in."""

    bias: Annotated[float, Meta(ge=0, le=100)] = 1.0
    """0: as varied as the training data; larger values write more carefully, and more alike."""
    prime: str | None = None
    """Prime with the first line of this data and continue in its style (same formats as --data)."""
    seed: Seed = 0
    """Random seed of the points that are drawn."""


class HandwritingTaskDeclaration(Declaration):
    """Train a handwriting synthesis network.

    As in:  regard train handwriting --out runs/hand
            regard train handwriting --data lineStrokes --out runs/iam --set width=400
            regard train handwriting --data sketches.npz --no-text --out runs/sketches
    """

    name = "handwriting"
    Options = HandwritingOptions
    PredictOptions = WriteOptions
    LookOptions = WriteOptions
    default_model = "handwriting"
    default_train = TrainOptions(steps=3000, lr=4e-3, schedule="cosine", average=0, evaluate_every=300)
    main_options = ("text",)

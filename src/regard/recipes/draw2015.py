"""Attention that reads and writes: a network that draws step by step through a movable window, and one that sees the whole canvas.

Paper: Gregor et al. 2015, "DRAW: a recurrent neural network for image generation", arXiv:1502.04623, table 2.
Run:   regard run draw2015        Takes: about 20 minutes on one CPU core; three seeds of four models, equal steps.

scikit-learn's digits at 24 × 24 pixels, black and white. The paper's figures are for binarised MNIST: at most 80.97 nats per image with
attention, 87.40 without. Without attention, a layer as wide has four times the parameters, so both are compared: as many parameters, and
layers as wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..models import Draw
from ..tasks import DrawOptions, DrawTask, load_run
from ..tasks.draw import films_of
from ..tasks.draw_pictures import strip
from ..train import TrainOptions
from ._engine import Recipe, RecipeFacts, Results, below, validation_curves, variant_folder
from ._engine.variants import TaskVariant

OPTIONS = DrawOptions(shares=(0.1, 0.1))
TRAIN = TrainOptions(steps=3000, lr=4e-3, schedule="cosine", average=0, clip=5.0, log_every=100, evaluate_every=300, save_every=3000)


def variant(**settings: Any) -> TaskVariant:
    return TaskVariant(task=DrawTask, options=OPTIONS, train=TRAIN, settings=settings)


@dataclass(frozen=True, kw_only=True)
class Strips:
    """Four images drawn from noise by each variant, with the first seed: a row each, a column per step."""

    variants: tuple[str, ...]

    def __call__(self, results: Results, out: Path) -> Path:
        films = []
        for name in self.variants:
            run = load_run(variant_folder(out, name, results.seeds[0]), Draw)
            films += films_of(run, run.model.sample(4, torch.Generator().manual_seed(1)))
        (out / "drawings.png").write_bytes(strip(films))
        return out / "drawings.png"


recipe = Recipe(
    facts=RecipeFacts("draw2015", 2015, "DRAW: a recurrent neural network for image generation", "arXiv:1502.04623", "about 20 minutes"),
    question="Does drawing through a movable window describe images in fewer nats than drawing on the whole canvas?",
    variants={
        "attention": variant(),
        "no attention": variant(attention="none", width=42),
        "no attention, as wide": variant(attention="none"),
        "one step": variant(glimpses=1),
    },
    claims=(
        below(
            "with attention the bound is lower than without, at as many parameters",
            ("attention", "loss"),
            ("no attention", "loss"),
            source="table 2",
        ),
        below(
            "with attention the bound is lower than without, at layers as wide",
            ("attention", "loss"),
            ("no attention, as wide", "loss"),
            source="table 2",
        ),
        below("eight steps have a lower bound than one, by at least 5 nats", ("attention", "loss"), ("one step", "loss"), by=5.0),
    ),
    pictures=(Strips(variants=("attention", "no attention")), validation_curves("loss")),
)

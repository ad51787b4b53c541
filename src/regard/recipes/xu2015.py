"""A caption model finds the object of each word without location labels, and writes better captions for it.

Paper: Xu et al. 2015, "Show, attend and tell", arXiv:1502.03044, sections 4 and 5 (there Flickr and COCO with a pretrained VGG, here generated
       scenes with an encoder trained from scratch).
Run:   regard run xu2015        Takes: about eleven minutes on one CPU core; three seeds of three small models, equal steps.

Scenes of one to three coloured shapes, 24 × 24 pixels, four colours and three shapes, a feature map of 6 × 6 cells. The grounding score is how
often the attention of a colour's or a shape's name peaks inside that object. The ablation gets the mean of all cells at every step, and is
otherwise the same model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import tasks
from ..look.overlays import draw_panels, on_grid
from ..runs import Run
from ..tasks import CaptionsOptions
from ..tasks.translation import BeamOptions
from ._engine import Claim, Recipe, RecipeFacts, Results, above, at_least, below, measured, variant_folder
from ._engine.variants import TaskVariant, short_training

DATA = "scenes:count=8000,size=24,objects=3,colours=4,shapes=3"
OPTIONS = CaptionsOptions(data=DATA, shares=(0.02, 0.025), image_size=24, valid_images=50)
TRAIN = short_training(1500, 0.02, evaluations=2)
SIZE: dict[str, Any] = {"features": 64, "embedding": 64, "width": 96, "alignment": 48}


def variant(attention: str) -> TaskVariant:
    settings = SIZE | {"attention": attention}
    return TaskVariant(task=tasks.Captioning, options=OPTIONS, train=TRAIN, settings=settings, evaluate=caption_metrics)


def caption_metrics(run: Run[Any]) -> dict[str, float]:
    found = tasks.evaluate(run, options=BeamOptions(beam=3)).metrics
    ratio = found["grounding"] / found["grounding_by_chance"] if "grounding" in found else 0.0  # captions that name no object
    return {**found, "grounding / chance": ratio}


@dataclass(frozen=True, kw_only=True)
class Words:
    """Attention of each trained model at each word of its own caption of a scene, for the first seed."""

    variant: str
    scene: str

    def __call__(self, results: Results, out: Path) -> Path:
        run = tasks.load_run(variant_folder(out, self.variant, results.seeds[0]))
        caption, maps = tasks.attention_maps(run, self.scene)
        drawn = maps.all[0]
        panels = [("", None), *((word, on_grid(drawn, row)) for word, row in zip(drawn.labels()[0], drawn.weights_BHLM[0, 0], strict=True))]
        path = out / f"words_{self.variant.split()[0]}.png"
        draw_panels(maps.image, panels, columns=10, title=f"{self.variant}: {caption}").savefig(path, dpi=110)
        return path


recipe = Recipe(
    facts=RecipeFacts(
        "xu2015",
        2015,
        "Show, attend and tell: neural image caption generation with visual attention",
        "arXiv:1502.03044",
        "about eleven minutes",
    ),
    question="Does attention find the object of each word, and does that make better captions?",
    variants={
        "soft attention": variant("additive"),
        "hard attention": variant("hard"),
        "no attention": variant("mean"),
    },
    claims=(
        at_least(
            "soft attention peaks inside the named object at least twice as often as by chance",
            2.0,
            ("soft attention", "grounding / chance"),
        ),
        at_least(
            "hard attention peaks inside the named object at least twice as often as by chance",
            2.0,
            ("hard attention", "grounding / chance"),
        ),
        above(
            "soft attention: more exact captions than with the mean of all cells, by 10 points",
            ("soft attention", "exact_match"),
            ("no attention", "exact_match"),
            0.1,
        ),
        below("soft attention: lower loss than with the mean of all cells", ("soft attention", "loss"), ("no attention", "loss")),
        above("soft attention: higher BLEU than with the mean of all cells", ("soft attention", "bleu"), ("no attention", "bleu")),
        above(
            "hard attention: more exact captions than with the mean of all cells",
            ("hard attention", "exact_match"),
            ("no attention", "exact_match"),
        ),
        Claim(
            "hard attention: at most 3 BLEU points below soft attention",
            measured("hard attention", "bleu") - measured("soft attention", "bleu") >= -3,
        ),
    ),
    pictures=(
        Words(variant="soft attention", scene="scenes:seed=5,size=24,objects=3,colours=4,shapes=3"),
        Words(variant="hard attention", scene="scenes:seed=5,size=24,objects=3,colours=4,shapes=3"),
    ),
)

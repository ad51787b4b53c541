"""Trained on captions, images are classified by class names, also by pairings of colour and shape that no caption had.

Paper: Radford et al. 2021, "Learning transferable visual models from natural language supervision", arXiv:2103.00020, sections 2 and 3 (there 400
       million pairs from the web, here generated scenes).
Run:   regard run clip2021        Takes: about six minutes on one CPU core; three seeds of two small models.

Scenes of one or two coloured shapes, 24 × 24 pixels. Six of thirty pairings of colour and shape are never trained; the model is asked which of these six, and
which of all thirty, a scene with one object shows. In the ablation captions are dealt out to the images at random.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import tasks
from .._extras import extra
from ..data.captions import Captioned, read_captions
from ..data.scenes import class_names
from ..data.splits import Splits
from ..models import CLIP
from ..tasks import Clip, ClipOptions
from ..tasks.clip import ZeroShotOptions, class_vectors, image_vectors
from ..train import TrainOptions
from ._engine import Recipe, RecipeFacts, Results, above, at_least, at_most, variant_folder
from ._engine.variants import short_training, train_run

DATA, UNSEEN = "scenes:count=4000,size=24,pairings=seen", "scenes:count=300,size=24,pairings=unseen,objects=1,seed=1"
TRAIN = short_training(600, 0.01, evaluations=2)
SIZE: dict[str, Any] = {
    "width": 64, "heads": 4, "depth": 2, "hidden": 128, "embedding": 64,
    "patch_size": 4, "image_width": 64, "image_heads": 4, "image_depth": 3, "image_hidden": 128,
}  # fmt: skip


class ShuffledClip(Clip):
    """Clip, with the captions of the training images dealt out at random."""

    def read(self) -> Splits[list[Captioned]]:
        found = super().read()
        captions = [one.captions for one in found.train]
        random.Random(0).shuffle(captions)
        dealt = [one._replace(captions=other) for one, other in zip(found.train, captions, strict=True)]
        return replace(found, train=dealt)


@dataclass(frozen=True, kw_only=True)
class ClipVariant:
    """CLIP trained from scratch; zero-shot accuracy on unseen and seen pairings, and retrieval among the test scenes."""

    task: type[Clip] = Clip
    train: TrainOptions = TRAIN

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        options = ClipOptions(data=DATA, image_size=24, max_length=16)
        run, training = train_run(self.task, options, self.train.replace(seed=seed), out, settings=SIZE)
        images = read_captions(UNSEEN, size=24, shares=(0.0, 0.0)).train
        six, thirty = (ZeroShotOptions(classes=tuple(class_names(which))) for which in ("unseen", "all"))
        test = Clip(options).read().test  # right captions, also in the ablation
        seen = [one for one in test if len(one.things) == 1]
        task = Clip(options, run.processor)

        def accuracy(some: list[Captioned], which: ZeroShotOptions) -> float:
            return task.report(*tasks.measure(task, run.model, some, which), some, which).metrics["zero_shot_accuracy"]

        return {
            **training,
            **task.metrics(*tasks.measure(task, run.model, test), test),
            "six unseen": accuracy(images, six),
            "unseen of thirty": accuracy(images, thirty),
            "seen of thirty": accuracy(seen, thirty),
        }


@dataclass(frozen=True, kw_only=True)
class Similarities:
    """Cosines of scenes with unseen pairings and the prompts of their classes, for the first seed."""

    variant: str

    def __call__(self, results: Results, out: Path) -> Path:
        with extra("look"):
            from matplotlib.figure import Figure

        run, names = tasks.load_run(variant_folder(out, self.variant, results.seeds[0]), CLIP), class_names("unseen")
        images = read_captions(UNSEEN, size=24, shares=(0.0, 0.0)).train
        some = [next(one for one in images if str(one.things[0]) == name) for name in names]
        i_BE = image_vectors(run.model, run.processor, [one.pixels for one in some])
        cosine = (i_BE @ class_vectors(run.model, run.processor, names, ZeroShotOptions()).T).numpy()
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes = figure.subplots(len(some), 2, width_ratios=(1, 6), squeeze=False)
        for (left, right), one, row in zip(axes, some, cosine, strict=True):
            left.imshow(one.pixels)
            left.set_axis_off()
            bars = right.bar(range(len(names)), row)
            bars[int(row.argmax())].set_color("tab:orange")
            right.set(ylim=(-0.7, 1), yticks=(0, 1), xticks=())
        axes[-1, 1].set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names], fontsize=8)
        figure.suptitle("Cosine with a prompt of each class; no caption in training had one of them", fontsize=10)
        figure.savefig(out / "similarities.png", dpi=120)
        return out / "similarities.png"


recipe = Recipe(
    facts=RecipeFacts(
        "clip2021", 2021, "Learning transferable visual models from natural language supervision", "arXiv:2103.00020", "about six minutes"
    ),
    question="Do captions teach classes that no caption has named?",
    variants={"CLIP": ClipVariant(), "shuffled captions": ClipVariant(task=ShuffledClip)},
    claims=(
        at_least("six pairings that were never trained: at least 0.9 right", 0.9, ("CLIP", "six unseen")),
        at_least("the same among all thirty pairings: at least 0.6 right", 0.6, ("CLIP", "unseen of thirty")),
        at_least("pairings that were trained, in new scenes: at least 0.9 right of thirty", 0.9, ("CLIP", "seen of thirty")),
        at_most(
            "shuffled captions: at most 0.3 right of six, where chance is 1 / 6", 0.3, ("shuffled captions", "six unseen"), kind="control"
        ),
        at_most(
            "shuffled captions: at most 0.1 right of thirty, where chance is 1 / 30",
            0.1,
            ("shuffled captions", "seen of thirty"),
            kind="control",
        ),
        above(
            "retrieval of captions: recall at 5 above that with shuffled captions, by 0.3",
            ("CLIP", "image_to_text_recall_at_5"),
            ("shuffled captions", "image_to_text_recall_at_5"),
            0.3,
            kind="control",
        ),
    ),
    pictures=(Similarities(variant="CLIP"),),
)

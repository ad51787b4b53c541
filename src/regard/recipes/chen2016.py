"""Two sentences aligned word by word show a small difference that their vectors lose.

Paper: Chen et al. 2017, "Enhanced LSTM for natural language inference", arXiv:1609.06038, tables 1 and 4 (SNLI: ESIM 88.0, sentence vectors up to 84.6,
       without attention to the hypothesis 86.5; here a puzzle).
Run:   regard run chen2016        Takes: about seven minutes on one CPU core; three seeds of three models.

A premise of ten coloured objects and a hypothesis of three: it follows; one of its colours is another; or one of its objects is not there. Models
of equal width, 1,200 steps each. The first ablation is ESIM with the mean of the other sentence in place of the alignment, the second InferSent,
which compares one vector per sentence. Sentence vectors take half of the time: the seconds of all are in the report.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import tasks
from ..look import Map
from ..tasks import Classify, ClassifyOptions
from ..train import TrainOptions
from ._engine import AttentionMaps, Proportion, Recipe, RecipeFacts, above, at_least, validation_curves
from ._engine.variants import short_training, train_run

COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "pink")
OBJECTS = (
    "apple", "bag", "ball", "bird", "book", "bottle", "box", "car", "cat", "chair", "clock", "coat", "cup", "desk", "dog", "door",
    "flower", "hat", "house", "lamp", "pen", "plate", "shoe", "spoon", "table", "tree",
)  # fmt: skip
PREMISE, HYPOTHESIS = 10, 3  # coloured objects in each
ROWS = {"train": 20_000, "valid": 300, "test": 1_500}
TRAIN = short_training(1200, 3e-3, "adamw", evaluations=4)
SIZE: dict[str, Any] = {"embedding": 48, "width": 48, "hidden": 48, "dropout": 0.0}
CROSS, MEAN, VECTORS = "cross-attention", "mean in place of attention", "sentence vectors"


def draw(generator: random.Random) -> tuple[str, str, str]:
    """A premise, a hypothesis and its label; each label is as frequent as the others."""
    objects, label = generator.sample(OBJECTS, PREMISE + 1), generator.choice(("entailment", "contradiction", "neutral"))
    premise = [(generator.choice(COLOURS), one) for one in objects[:PREMISE]]
    hypothesis = generator.sample(premise, HYPOTHESIS)
    colour, one = hypothesis[0]
    if label == "contradiction":
        hypothesis[0] = (generator.choice([other for other in COLOURS if other != colour]), one)
    elif label == "neutral":
        hypothesis[0] = (colour, objects[-1])
    generator.shuffle(hypothesis)
    return " ".join(map(" ".join, premise)), " ".join(map(" ".join, hypothesis)), label


def write_pairs(path: Path, rows: int, seed: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = random.Random(seed)
    path.write_text("".join("\t".join(draw(generator)) + "\n" for _ in range(rows)), encoding="utf-8")
    return str(path)


@dataclass(frozen=True, kw_only=True)
class PairsVariant:
    """A classifier of pairs, evaluated on pairs that it has not seen."""

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainOptions = TRAIN
    rows: Mapping[str, int] = field(default_factory=lambda: ROWS)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        data, valid, test = (write_pairs(out / f"{part}.tsv", rows, part) for part, rows in self.rows.items())
        options = ClassifyOptions(data=data, valid=valid, test=test, tokenizer="word", batch_size=64, layer_lr_decay=1.0)
        run, training = train_run(
            Classify, options, self.train.replace(seed=seed), out, model=self.model, settings=SIZE | dict(self.settings)
        )
        report = tasks.evaluate(run)
        return {"accuracy": Proportion(report.metrics["accuracy"], self.rows["test"]), "loss": report.metrics["loss"], **training}

    def attention_map(self, out: Path, layer: int = -1) -> Map:
        """The hypothesis, aligned with the premise, in which one colour is another."""
        pair = "red apple blue bag green ball yellow bird black book white bottle brown box pink car red cat blue chair\tgreen ball white bag pink car"
        return tasks.attention_maps(tasks.load_run(out), pair, "second_to_first")[1].all[-1]


VARIANTS = {
    CROSS: PairsVariant(model="esim"),
    MEAN: PairsVariant(model="esim", settings={"attention": "softmax(scale=0)"}),
    VECTORS: PairsVariant(model="infersent"),
}
recipe = Recipe(
    facts=RecipeFacts("chen2016", 2016, "Enhanced LSTM for natural language inference", "arXiv:1609.06038", "about seven minutes"),
    question="Does attention between two sentences find a small difference that their vectors miss?",
    variants=VARIANTS,
    claims=(
        at_least("with cross-attention at least 97 % right", 0.97, CROSS),
        above("at least 10 points more than by sentence vectors", CROSS, VECTORS, 0.1),
        above("at least 30 points more than with the mean in place of attention", CROSS, MEAN, 0.3),
    ),
    pictures=(validation_curves("loss"), AttentionMaps(variants={CROSS: VARIANTS[CROSS]}, columns=1)),
)

"""Several queries read several facts of a text at once, one query must fit them into one average; a penalty keeps the queries apart.

Paper: Lin et al. 2017, "A structured self-attentive sentence embedding", arXiv:1703.03130, sections 4.4.1 and 4.4.2 (there reviews and
       inference: 10 or 30 queries above 1, and with the penalty above without).
Run:   regard run hops2017        Takes: a quarter of an hour on one CPU core; three seeds of four small models.

Texts of 40 words in which size, colour and shape are announced and then named, somewhere and in any order, among as many values that are not announced;
the label is all three: 64 classes. A bidirectional LSTM of width 16 and 8 queries, or 1. Redundancy is ‖A Aᵀ − I‖² of the test texts,
from 0 to r² − r. The majority has one text in 64.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..layers import redundancy
from ..tasks import Classify, ClassifyOptions, attention_maps, evaluate
from ..train import TrainOptions
from ._engine import Claim, Proportion, Recipe, RecipeFacts, above, at_least, measured, validation_curves
from ._engine.variants import short_training, train_run

FACTS = {
    "size": ("tiny", "small", "large", "huge"),
    "colour": ("red", "green", "blue", "white"),
    "shape": ("round", "square", "long", "flat"),
}
FILLERS = tuple(["on", "in", "at", "by", "to", "of", "as", "is", "it", "we", "he", "be", "do", "go", "so", "up"])
WORDS = 40
ROWS = {"train": 6000, "valid": 300, "test": 1000}
TRAIN = short_training(600, 5e-3, "adamw", evaluations=6)
SIZE: dict[str, Any] = {"embedding": 16, "width": 16, "hidden": 64, "key_size": 16, "dropout": 0.0}
MANY, ONE, NO_PENALTY, TWO = "8 queries", "1 query", "8 queries, no penalty", "2 queries"


def draw(generator: random.Random) -> tuple[str, str]:
    """A text and its label."""
    values = {name: generator.choice(known) for name, known in FACTS.items()}
    others = [generator.choice(known) for known in FACTS.values() for _ in range(3)]
    words: list[str] = [*others, *generator.choices(FILLERS, k=WORDS - len(others) - 2 * len(values))]
    generator.shuffle(words)
    told = [f"{name} {value}" for name, value in values.items()]
    for one in told:
        words.insert(generator.randrange(len(words) + 1), one)
    return " ".join(words), "-".join(values.values())


def write_texts(path: Path, rows: int, seed: str) -> str:
    """Write texts with their labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = random.Random(seed)
    path.write_text("".join("\t".join(draw(generator)) + "\n" for _ in range(rows)), encoding="utf-8")
    return str(path)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A self-attentive encoder trained on such texts, and how alike its queries attend."""

    settings: Mapping[str, Any]
    train: TrainOptions = TRAIN
    rows: Mapping[str, int] = field(default_factory=lambda: ROWS)
    model: str = "self_attentive"

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        data, valid, test = (write_texts(out / f"{part}.tsv", rows, part) for part, rows in self.rows.items())
        options = ClassifyOptions(data=data, valid=valid, test=test, tokenizer="word", batch_size=64, layer_lr_decay=1.0)
        run, training = train_run(
            Classify, options, self.train.replace(seed=seed), out, model=self.model, settings=SIZE | dict(self.settings)
        )
        report = evaluate(run)
        return {
            "accuracy": Proportion(report.metrics["accuracy"], self.rows["test"]),
            "loss": report.metrics["loss"],
            "redundancy": mean_redundancy(run),
            **training,
        }


@torch.no_grad()
def mean_redundancy(run: Any, texts: int = 20) -> float:
    """Mean of ‖A Aᵀ − I‖² over texts."""
    generator, total = random.Random(7), 0.0
    for _ in range(texts):
        weights_BHLM = attention_maps(run, draw(generator)[0])[1].all[0].weights_BHLM
        total += float(redundancy(weights_BHLM[0].mean(0, keepdim=True)).mean())
    return total / texts


recipe = Recipe(
    facts=RecipeFacts("hops2017", 2017, "A structured self-attentive sentence embedding", "arXiv:1703.03130", "a quarter of an hour"),
    question="What do several queries read that one does not, and what does the penalty do?",
    variants={
        MANY: Reader(settings={"queries": 8}),
        ONE: Reader(settings={"queries": 1}),
        TWO: Reader(settings={"queries": 2}),
        NO_PENALTY: Reader(settings={"queries": 8, "penalty": 0.0}),
    },
    claims=(
        at_least("8 queries: at least 90 % right", 0.9, MANY),
        above("8 queries are above 1 after equal steps", MANY, ONE, source="section 4.4.2"),
        Claim(
            "without the penalty the queries are at least twice as redundant",
            measured(NO_PENALTY, "redundancy") - measured(MANY, "redundancy") * 2 >= 0,
            source="section 4.4.1",
        ),
        above("with the penalty accuracy is higher", MANY, NO_PENALTY, source="section 4.4.1"),
    ),
    pictures=(validation_curves("loss"),),
)

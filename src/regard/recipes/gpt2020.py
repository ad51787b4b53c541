"""Tasks shown by examples in the prompt, learned without changing a parameter: the more examples, the more answers are right. And what
GPT-3's layers with local attention cost, and save.

Paper: Brown et al. 2020, "Language models are few-shot learners", arXiv:2005.14165, sections 2.1 and 3 (there 175 billion parameters and
       a crawl of the web, here two layers and mappings of four questions to eight answers, another one in every prompt).
Run:   regard run gpt2020        Takes: about ten minutes on two CPU cores; three seeds of seven small models.

A question whose answer was shown can be answered by looking it up: one layer joins a question to its answer, the next attends to the
same question. (One layer alone gets there in part, in several times as many steps.) With n examples 1 − (3/4)ⁿ of the questions have been
shown; for the others chance is one in eight. Trained on answers unrelated to their questions, the same model learns that examples say
nothing. The time is that of a model of four layers, width 64, bands of 128, forward pass, one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..models import build
from ..tasks import LanguageOptions
from ._engine import AttentionMaps, Claim, Curves, Recipe, RecipeFacts, Value, at_least, at_most, below, measured, validation_curves
from ._engine.puzzles import Shots
from ._engine.stacks import PuzzleLMVariant
from ._engine.variants import TextVariant, milliseconds, short_training

SIZE: dict[str, Any] = {"width": 64, "heads": 4, "head_dim": 16, "depth": 2}
BAND, LONG = 128, 2048  # of the model that is timed
SPARSE, DENSE, ONE, NEAR, SILENT = "banded and dense", "all dense", "one layer", "all banded", "answers shuffled"
TEXT = LanguageOptions(tokenizer="char", context_length=128, batch_size=8, shares=(0.1, 0.1), valid_tokens=5000)


@dataclass(frozen=True)
class Cost:
    """Query-key pairs of four layers, and the time they take, at two lengths."""

    attention: tuple[str, ...]
    bands: tuple[int, ...]  # keys per query at most, of alternating layers

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        settings = SIZE | {"vocab_size": 64, "context_length": LONG, "depth": 4, "attention": self.attention}
        model, found = build("gpt3", settings).eval(), {}
        for length in (LONG // 2, LONG):
            pairs = [sum(min(i + 1, band) for i in range(length)) for band in self.bands]
            found[f"pairs per layer, length {length}"] = sum(pairs) / len(pairs)
            found[f"ms, length {length}"] = milliseconds(partial(model, torch.randint(64, (1, length))), repeats=5)
        return found


def variant(depth: int = 2, attention: tuple[str, ...] = ("local(radius=1)", "softmax"), informative: bool = True) -> PuzzleLMVariant:
    settings = SIZE | {"depth": depth, "attention": attention}
    puzzle, train = Shots(informative=informative), short_training(1800, 1e-2)
    return PuzzleLMVariant(puzzle=puzzle, test=Shots(), train=train, settings=settings, by="shots")


def text_variant(*attention: str) -> TextVariant:
    return TextVariant(options=TEXT, train=short_training(400, 2e-2), model="gpt3", settings=SIZE | {"attention": attention})


PROMPTED = {
    SPARSE: variant(),
    DENSE: variant(attention=("softmax",)),
    ONE: variant(depth=1, attention=("softmax",)),
    NEAR: variant(attention=("local(radius=1)",)),
    SILENT: variant(informative=False),
}


def shots(name: str, count: int) -> tuple[str, str]:
    return name, f"accuracy by shots, {count}"


def ratio(metric: str) -> Value:
    return measured("cost, banded and dense", metric) / measured("cost, all dense", metric)


recipe = Recipe(
    facts=RecipeFacts("gpt2020", 2020, "Language models are few-shot learners", "arXiv:2005.14165", "about ten minutes"),
    question="Does a model do what examples in its prompt show, and may half of its layers use local attention?",
    variants={
        **PROMPTED,
        "text, banded and dense": text_variant("local(radius=15)", "softmax"),
        "text, all dense": text_variant("softmax"),
        "cost, banded and dense": Cost(("softmax", f"local(radius={BAND - 1})"), (LONG, BAND)),
        "cost, all dense": Cost(("softmax",), (LONG,)),
    },
    claims=(
        at_least("after 16 examples at least 95 % of the answers are right", 0.95, shots(SPARSE, 16)),
        Claim(
            "accuracy rises from none, at most a quarter, to one, two, four and sixteen examples",
            measured(*shots(SPARSE, 0)) <= 0.25,
            *(measured(*shots(SPARSE, b)) - measured(*shots(SPARSE, a)) >= 0 for a, b in ((0, 1), (1, 2), (2, 4), (4, 16))),
        ),
        at_most("trained with shuffled answers: at most 30 % after 16 examples", 0.3, shots(SILENT, 16), kind="control"),
        below(
            "one layer, with none before to join question and answer: at least 20 points below two", shots(ONE, 16), shots(SPARSE, 16), 0.2
        ),
        at_most("all layers banded, which reach one example: at most half", 0.5, shots(NEAR, 16), kind="control"),
        Claim(
            "every other layer banded: at most 2 points below all dense after equal steps",
            measured(*shots(SPARSE, 16)) - measured(*shots(DENSE, 16)) >= -0.02,
            learned=(measured(*shots(DENSE, 16)) >= 0.95,),
        ),
        Claim(
            "on text, a band of 16 in every other layer: at most 0.05 nats above all dense after equal steps",
            measured("text, banded and dense", "loss") - measured("text, all dense", "loss") <= 0.05,
        ),
        Claim(
            f"at {LONG:,} tokens alternating banded and dense layers take at most 85 % of the time of dense ones alone",
            ratio(f"ms, length {LONG}") <= 0.85,
        ),
    ),
    pictures=(
        validation_curves("accuracy"),
        Curves(metric="accuracy by shots", file="shots", x="examples in the prompt", y="accuracy", title="Accuracy by number of examples"),
        AttentionMaps(variants={name: PROMPTED[name] for name in (SPARSE, DENSE, SILENT)}, layers=(0, 1), columns=2),
    ),
)

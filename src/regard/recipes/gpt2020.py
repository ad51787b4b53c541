"""A task shown by examples in the prompt, and no weight changes: the more examples, the more answers are right. And what GPT-3's layers
that look at their neighbourhood only cost, and save.

Paper: Brown et al. 2020, "Language models are few-shot learners", arXiv:2005.14165, sections 2.1 and 3 (there 175 billion parameters and
       all of the web, here two layers and mappings of four questions to eight answers, another one in every prompt).
Run:   regard run gpt2020        Takes: some ten minutes on two CPU cores; three seeds of seven small models.

A question whose answer was shown can be answered by looking it up: one layer puts a question beside its answer, the next looks for the
question. (One layer alone gets there in part, in several times as many steps.) With n examples 1 − (3/4)ⁿ of the questions have been shown;
for the others chance is one in eight. Trained on answers that have nothing to do with their questions, the same model learns that examples
say nothing. The time is that of a model of four layers, 64 wide, bands of 128, forward, one thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..models import build
from ..tasks import LanguageConfig
from ._base import Claim, Figures, Recipe, RecipeFacts, Spread, folder
from ._language import Drawn, Written, training
from ._pictures import lines, looks, series, solving
from ._puzzles import Shots
from .complexity2017 import one_thread

SIZE: dict[str, Any] = {"width": 64, "heads": 4, "head_width": 16, "depth": 2}
BAND, LONG = 128, 2048  # of the model that is timed
SPARSE, DENSE, ONE, NEAR, SILENT = "banded and dense", "all dense", "one layer", "all banded", "answers shuffled"
TEXT = LanguageConfig(tokens="characters", length=128, batch=8, shares=(0.1, 0.1), judged=5000)


@dataclass(frozen=True)
class Cost:
    """What four layers look at, and how long they take, at two lengths."""

    attention: tuple[str, ...]
    bands: tuple[int, ...]  # tokens that a layer sees at most, in turn

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        settings = SIZE | {"vocab": 64, "length": LONG, "depth": 4, "attention": self.attention}
        model, found = build("gpt3", settings).eval(), {}
        for length in (LONG // 2, LONG):
            pairs = [sum(min(i + 1, band) for i in range(length)) for band in self.bands]
            found[f"pairs a layer at {length}"] = sum(pairs) / len(pairs)
            found[f"ms at {length}"] = self._milliseconds(model, torch.randint(64, (1, length)))
        return found

    def _milliseconds(self, model: torch.nn.Module, ids_BL: torch.Tensor) -> float:
        seconds = []
        with torch.inference_mode(), one_thread():
            for _ in range(6):
                start = time.perf_counter()
                model(ids_BL)
                seconds.append(time.perf_counter() - start)
        return min(seconds) * 1e3


def variant(depth: int = 2, attention: tuple[str, ...] = ("local(radius=1)", "softmax"), telling: bool = True) -> Drawn:
    settings = SIZE | {"depth": depth, "attention": attention}
    return Drawn(puzzle=Shots(telling=telling), test=Shots(), train=training(600, 1e-2), settings=settings, answer="shots")


def written(*attention: str) -> Written:
    return Written(config=TEXT, train=training(400, 2e-2), model="gpt3", settings=SIZE | {"attention": attention})


PROMPTED = {
    SPARSE: variant(),
    DENSE: variant(attention=("softmax",)),
    ONE: variant(depth=1, attention=("softmax",)),
    NEAR: variant(attention=("local(radius=1)",)),
    SILENT: variant(telling=False),
}


def shots(f: Figures, name: str, count: int) -> Spread:
    return f[name, f"accuracy by shots, {count}"]


def prompts(figures: Figures, out: Path) -> Path:
    points = series(figures, "accuracy by shots")
    return lines(out / "shots.png", points, x="examples in the prompt", y="share right", title="Answers by number of examples")


def maps(figures: Figures, out: Path) -> Path:
    names = (SPARSE, DENSE, SILENT)
    shown = {f"{name}, {n + 1}": PROMPTED[name].look(folder(out, name, figures.seeds[0]), n) for name in names for n in (0, 1)}
    return looks(out / "looks.png", shown, columns=2)


def ratio(f: Figures, figure: str) -> Spread:
    pairs = zip(f["cost, banded and dense", figure].values, f["cost, all dense", figure].values, strict=True)
    return Spread([one / other for one, other in pairs])


recipe = Recipe(
    facts=RecipeFacts(
        name="gpt2020",
        year=2020,
        title="Language models are few-shot learners",
        paper="arXiv:2005.14165",
        takes="some ten minutes on two CPU cores",
    ),
    question="Does a model do what examples in its prompt show, and may half of its layers look at their neighbourhood only?",
    variants={
        **PROMPTED,
        "text, banded and dense": written("local(radius=15)", "softmax"),
        "text, all dense": written("softmax"),
        "cost, banded and dense": Cost(("softmax", f"local(radius={BAND - 1})"), (LONG, BAND)),
        "cost, all dense": Cost(("softmax",), (LONG,)),
    },
    claims=(
        Claim(
            "after 16 examples at least 95 % of the answers are right",
            lambda f: shots(f, SPARSE, 16).low >= 0.95,
            lambda f: str(shots(f, SPARSE, 16)),
        ),
        Claim(
            "accuracy rises from none, at most a quarter, to one, two, four and sixteen examples",
            lambda f: (
                shots(f, SPARSE, 0).high <= 0.25
                and all(shots(f, SPARSE, a).mean < shots(f, SPARSE, b).mean for a, b in ((0, 1), (1, 2), (2, 4), (4, 16)))
            ),
            lambda f: "; ".join(f"{n}: {shots(f, SPARSE, n).mean:.2f}" for n in (0, 1, 2, 4, 16)),
        ),
        Claim(
            "trained with shuffled answers: at most 30 % after 16 examples",
            lambda f: shots(f, SILENT, 16).high <= 0.3,
            lambda f: str(shots(f, SILENT, 16)),
        ),
        Claim(
            "one layer, which has no layer before to put question and answer together: at least 20 points below two",
            lambda f: (shots(f, SPARSE, 16) - shots(f, ONE, 16)).low >= 0.2,
            lambda f: f"{shots(f, ONE, 16)} against {shots(f, SPARSE, 16)}",
        ),
        Claim(
            "all layers banded, which reach one example: at most half",
            lambda f: shots(f, NEAR, 16).high <= 0.5,
            lambda f: str(shots(f, NEAR, 16)),
        ),
        Claim(
            "every other layer banded: at most 2 points below all dense after equal steps",
            lambda f: (shots(f, SPARSE, 16) - shots(f, DENSE, 16)).mean >= -0.02,
            lambda f: f"{shots(f, SPARSE, 16)} against {shots(f, DENSE, 16)}",
        ),
        Claim(
            "on text, a band of 16 in every other layer: at most 0.05 nats above all dense after equal steps",
            lambda f: (f["text, banded and dense", "nats"] - f["text, all dense", "nats"]).mean <= 0.05,
            lambda f: f"{f['text, banded and dense', 'nats']} against {f['text, all dense', 'nats']}",
        ),
        Claim(
            f"at {LONG:,} tokens banded layers in turn with dense take at most 85 % of the time of dense ones alone",
            lambda f: ratio(f, f"ms at {LONG}").mean <= 0.85,
            lambda f: f"{ratio(f, f'ms at {LONG}')} of the time, {ratio(f, f'pairs a layer at {LONG}')} of the pairs",
        ),
    ),
    pictures=(solving, prompts, maps),
)

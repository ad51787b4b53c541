"""A hidden word, guessed from both sides or from the left only; and what a model that has learned to guess needs fewer labels for.

Paper: Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", arXiv:1810.04805, sections 3.1, 4.1 and 5.1 (table 5:
       left to right loses; there Wikipedia and books, here CPython's documentation).
Run:   regard run bert2018        Takes: some ten minutes on two CPU cores; three seeds of two encoders, one of them tuned three times.

Two layers that see one token to each side and the first, which sees all; the ablation sees two to the left. Equal sizes, steps and
hidden tokens. Windows, because learned places find their neighbours too slowly for so short a training: looking everywhere, 14 % are
guessed after 600 steps and after 2,400. Then: which of eight topics is a paragraph from, with eight labelled paragraphs of each topic to
learn from, and sixteen of each, which pre-training has not seen, to judge by. From scratch is the same encoder with fresh weights; all
take equal epochs at equal rates.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..models import Labeller, TextEncoder
from ..tasks import LabelConfig, MaskedConfig, Run, judge_labels, judge_masked, train_labels, train_masked
from ..tasks.language import text_for
from ..train import TrainConfig
from ._base import Again, Claim, Recipe, RecipeFacts
from ._language import curve, documentation, lines_of, topics, training
from ._pictures import learning

TOPICS, SHARES = 8, {"train": 8, "valid": 8, "test": 16}  # paragraphs of a topic in each part
TEXT = MaskedConfig(tokens="bpe", vocab=500, length=64, batch=32, following=False, shares=(0.1, 0.1), judged=64)
SIZE: dict[str, Any] = {
    "width": 64,
    "heads": 4,
    "depth": 2,
    "hidden": 256,
    "dropout": 0.0,
    "attention": "softmax under window(1) | tokens(0)",
}
STEPS = 1200
BOTH, LEFT = "both sides", "left only"
TUNED, HALF, SCRATCH = "pre-trained", "pre-trained, lower half frozen", "from scratch"


def labelled() -> dict[str, list[dict[str, str]]]:
    """Paragraphs with their topics, in three parts: those of the topics that have most, some of each, drawn once and for all."""
    long = {title: [one for one in paragraphs if len(one) >= 120] for title, paragraphs in topics().items()}
    found: dict[str, list[dict[str, str]]] = {part: [] for part in SHARES}
    for title in sorted(long, key=lambda title: -len(long[title]))[:TOPICS]:
        some = random.Random(0).sample(long[title], sum(SHARES.values()))
        for part, count in SHARES.items():
            found[part] += [{"text": " ".join(one.split()), "label": title, "as it was": one} for one in some[:count]]
            some = some[count:]
    return found


@dataclass(frozen=True, kw_only=True)
class Guessed:
    """An encoder that learns to guess hidden tokens, judged on topics it has not seen."""

    train: TrainConfig
    settings: Mapping[str, Any]
    config: MaskedConfig = field(default=TEXT)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)  # a recipe is a measurement: nothing of an earlier run counts
        parts = labelled()
        for part, examples in parts.items():
            lines_of(out / f"{part}.jsonl", [{"text": one["text"], "label": one["label"]} for one in examples])
        unseen = {one["as it was"] for part in ("valid", "test") for one in parts[part]}
        config = replace(self.config, data=str(documentation(out / "text.jsonl", unseen)))
        done = train_masked(out, config, replace(self.train, seed=seed), "bert", self.settings, progress=False)
        run = Run.load(out, TextEncoder)
        found, ids = judge_masked(run), text_for(run, config, None).ids
        return {
            "guessed": found["right"],
            "nats": found["nats"],
            "commonest token": float(np.bincount(ids).max() / len(ids)),
            "seconds": done.seconds,
            **curve(out, "nats"),
        }


@dataclass(frozen=True, kw_only=True)
class Classified:
    """The encoder in `out` taught topics, in a folder below."""

    frozen: float = 0.0
    scratch: bool = False
    epochs: int = 20
    rate: float = 2e-3

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        into = out / ("scratch" if self.scratch else f"tuned_{self.frozen}")
        files = {part: str(out / f"{part}.jsonl") for part in SHARES}
        data = {"data": files["train"], "valid": files["valid"], "test": files["test"]}
        config = LabelConfig(**data, base=str(out), scratch=self.scratch, frozen=self.frozen, length=TEXT.length, batch=16)  # type: ignore[arg-type]
        train_labels(into, config, seeds=(seed,), epochs=self.epochs, patience=0, lr=self.rate, progress=False)
        found, _ = judge_labels(Run.load(into, Labeller))
        return {"accuracy": found["accuracy"], "label nats": found["nats"]}


recipe = Recipe(
    facts=RecipeFacts(
        name="bert2018",
        year=2018,
        title="BERT: pre-training of deep bidirectional transformers",
        paper="arXiv:1810.04805",
        takes="some ten minutes on two CPU cores",
    ),
    question="Is a hidden word better guessed from both sides, and does having learned it help with other tasks?",
    variants={
        BOTH: Guessed(train=training(STEPS, 1e-2), settings=SIZE),
        LEFT: Guessed(train=training(STEPS, 1e-2), settings=SIZE | {"attention": "softmax under causal & (window(2) | tokens(0))"}),
        TUNED: Again(BOTH, Classified()),
        HALF: Again(BOTH, Classified(frozen=0.5)),
        SCRATCH: Again(BOTH, Classified(scratch=True)),
    },
    claims=(
        Claim(
            "from both sides at least 10 points more hidden tokens are guessed than from the left",
            lambda f: (f[BOTH, "guessed"] - f[LEFT, "guessed"]).low >= 0.1,
            lambda f: f"{f[BOTH, 'guessed']} against {f[LEFT, 'guessed']}",
        ),
        Claim(
            "and at least 10 points more than by always saying the commonest",
            lambda f: (f[BOTH, "guessed"] - f[BOTH, "commonest token"]).low >= 0.1,
            lambda f: f"{f[BOTH, 'guessed']} against {f[BOTH, 'commonest token']}",
        ),
        Claim(
            "topics: pre-trained at least 5 points above from scratch",
            lambda f: (f[TUNED, "accuracy"] - f[SCRATCH, "accuracy"]).mean >= 0.05,
            lambda f: f"{f[TUNED, 'accuracy']} against {f[SCRATCH, 'accuracy']}",
        ),
        Claim(
            "topics: with the lower half frozen above from scratch, and at most 3 points above all of it tuned",
            lambda f: f[SCRATCH, "accuracy"].mean < f[HALF, "accuracy"].mean <= f[TUNED, "accuracy"].mean + 0.03,
            lambda f: f"{f[HALF, 'accuracy']} between {f[SCRATCH, 'accuracy']} and {f[TUNED, 'accuracy']}",
        ),
    ),
    pictures=(learning,),
)

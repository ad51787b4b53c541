"""A masked token predicted from both sides or from the left only; and how pre-training reduces the labels that another task needs.

Paper: Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", arXiv:1810.04805, sections 3.1, 4.1 and 5.1 (table 5:
       left to right loses; there Wikipedia and books, here CPython's documentation).
Run:   regard run bert2018        Takes: about half an hour on one CPU core; three seeds of three encoders, one of them fine-tuned three times.

Two layers of attention to all tokens with rotary embeddings; the ablation attends to the left only. Equal sizes, steps and masked tokens.
(BERT's learned positions find their neighbours too slowly for so short a training: 14 % of the masked tokens after 600 steps and after 2,400.)

Then topic classification: which of eight topics is a paragraph from, with eight labelled paragraphs per topic for training, and 24 per topic,
unseen in pre-training, for testing. BERT reads a text out of its first token, which pre-training without pairs of sentences leaves unused where
every token attends to all; so the encoder of this part attends to one token on each side and to the first, which attends to all. From scratch
is the same encoder with new parameters; all take equally many epochs at the same learning rate.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..tasks import Classify, ClassifyOptions, Masked, MaskedOptions, evaluate, load_run, train
from ..train import TrainOptions
from ._engine import Claim, Proportion, Recipe, RecipeFacts, Reevaluation, above, measured, validation_curves
from ._engine.variants import short_training, topics, train_run, write_documentation, write_jsonl

TOPICS, SHARES = 8, {"train": 8, "valid": 8, "test": 24}  # paragraphs per topic in each part
TEXT = MaskedOptions(
    tokenizer="bpe", vocab_size=500, max_length=64, mask_rate=0.15, batch_size=32, next_sentence="no", shares=(0.1, 0.1), valid_rows=64
)
SIZE: dict[str, Any] = {"width": 64, "heads": 4, "depth": 2, "hidden": 128, "dropout": 0.0}
TRAIN = short_training(1200, 1e-2)
BOTH, LEFT, NEAR = "both sides", "left only", "one token on each side and the first"
TUNED, HALF, SCRATCH = "pre-trained", "pre-trained, lower half frozen", "from scratch"


def labelled() -> dict[str, list[dict[str, str]]]:
    """Paragraphs with their topics, in three parts: of the topics that have the most, always the same random ones."""
    long = {title: [one for one in paragraphs if len(one) >= 120] for title, paragraphs in topics().items()}
    found: dict[str, list[dict[str, str]]] = {part: [] for part in SHARES}
    for title in sorted(long, key=lambda title: -len(long[title]))[:TOPICS]:
        some = random.Random(0).sample(long[title], sum(SHARES.values()))
        for part, count in SHARES.items():
            found[part] += [{"text": " ".join(one.split()), "label": title, "original": one} for one in some[:count]]
            some = some[count:]
    return found


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """An encoder trained to predict masked tokens, evaluated on unseen topics."""

    settings: Mapping[str, Any]
    model: str = "modernbert"
    train: TrainOptions = TRAIN

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        parts = labelled()
        for part, examples in parts.items():
            write_jsonl(out / f"{part}.jsonl", [{"text": one["text"], "label": one["label"]} for one in examples])
        unseen = {one["original"] for part in ("valid", "test") for one in parts[part]}
        options = replace(TEXT, data=str(write_documentation(out / "text.jsonl", unseen)))
        run, training = train_run(Masked, options, self.train.replace(seed=seed), out, model=self.model, settings=self.settings)
        metrics, ids = evaluate(run).metrics, Masked(options, run.processor).test_data(run, None).ids
        most_common = float(np.bincount(ids).max() / len(ids))
        return {"accuracy": metrics["accuracy"], "loss": metrics["loss"], "most common token": most_common, **training}


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """The encoder in `out` fine-tuned to classify topics, in a folder below."""

    freeze: float = 0.0
    from_scratch: bool = False
    epochs: int = 20
    lr: float = 2e-3

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        into = out / ("scratch" if self.from_scratch else f"tuned_{self.freeze}")
        data, valid, test = (str(out / f"{part}.jsonl") for part in SHARES)
        options = ClassifyOptions(
            data=data, valid=valid, test=test, freeze=self.freeze, layer_lr_decay=0.9, max_length=TEXT.max_length, batch_size=16
        )
        tuning = TrainOptions(seed=seed, epochs=self.epochs, lr=self.lr, schedule="linear", average=0)
        train(Classify, options, tuning, into, init_from=out, from_scratch=self.from_scratch, progress=False)
        metrics = evaluate(load_run(into)).metrics
        return {"accuracy": Proportion(metrics["accuracy"], TOPICS * SHARES["test"]), "loss": metrics["loss"]}


recipe = Recipe(
    facts=RecipeFacts("bert2018", 2018, "BERT: pre-training of deep bidirectional transformers", "arXiv:1810.04805", "about half an hour"),
    question="Is a masked token better predicted from both sides, and does this pre-training help with other tasks?",
    variants={
        BOTH: Pretrained(settings=SIZE | {"attention": "softmax"}),
        LEFT: Pretrained(settings=SIZE | {"attention": "softmax under causal"}),
        NEAR: Pretrained(model="bert", settings=SIZE | {"hidden": 256, "attention": "softmax under window(1) | tokens(0)"}),
        TUNED: Reevaluation(NEAR, FineTuned()),
        HALF: Reevaluation(NEAR, FineTuned(freeze=0.5)),
        SCRATCH: Reevaluation(NEAR, FineTuned(from_scratch=True)),
    },
    claims=(
        above(
            "from both sides at least 10 points more masked tokens are right than from the left",
            BOTH,
            LEFT,
            0.1,
            source="table 5",
            learned=(measured(LEFT) - measured(LEFT, "most common token") >= 0.1,),
        ),
        above(
            "and at least 10 points more than by always predicting the most common token",
            BOTH,
            (BOTH, "most common token"),
            0.1,
            kind="level",
        ),
        above("topics: pre-trained at least 5 points above from scratch", TUNED, SCRATCH, 0.05),
        Claim(
            "topics: with the lower half frozen above from scratch, and at most 3 points above all of it fine-tuned",
            measured(HALF) - measured(SCRATCH) >= 0,
            measured(HALF) - measured(TUNED) <= 0.03,
        ),
    ),
    pictures=(validation_curves("loss"),),
)

"""Classification of texts and of pairs of texts, from labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.examples import Examples, Labelled, read_labelled
from ..models import Classifier
from ..runs import Run
from ._base import Example, Prediction
from ._classification import ClassificationOptions, ClassificationTask, label_logits
from ._labelled import collate


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(ClassificationOptions):
    """Which examples, and how much of a pretrained model may change."""


@dataclass(frozen=True, kw_only=True)
class ClassesOptions:
    """What to print."""

    nbest: int = 1
    """Labels per text, most likely first, with their probabilities."""


class Classify(ClassificationTask[ClassifyOptions]):
    """Train a classifier of texts, or of pairs of texts, from labelled examples.

    As in:  regard train classify --data reviews.tsv --init-from runs/encoder --out runs/reviews
            regard train classify --data nli.jsonl --fields premise hypothesis label --init-from runs/encoder --out runs/nli
    """

    name = "classify"
    Options = ClassifyOptions
    PredictOptions = ClassesOptions
    per_token = False

    def read(self) -> Examples[Labelled]:
        o = self.options
        return read_labelled(o.data, valid=o.valid, test=o.test, fields=o.fields, on_error=o.on_error, shares=o.shares)

    def texts_of(self, example: Labelled) -> Sequence[str]:
        return example.texts

    def labels_of(self, example: Labelled) -> Sequence[str]:
        return (example.label,)

    def predict(self, run: Run[Classifier], inputs: Sequence[str], options: ClassesOptions) -> list[Prediction]:
        """A tab separates the two texts of a pair."""
        labels = run.processor.labels
        best = self.probabilities(run, [tuple(line.split("\t")) for line in inputs]).topk(min(options.nbest, len(labels)))
        answers = []
        for ps, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            found = [{"label": labels[n], "probability": p} for p, n in zip(ps, numbers, strict=True)]
            answers.append(Prediction("\n".join(f"{one['label']}\t{one['probability']:.4f}" for one in found), {"labels": found}))
        return answers

    @torch.no_grad()
    def probabilities(self, run: Run[Classifier], texts: Sequence[tuple[str, ...]]) -> Tensor:
        """p_EN of every label for each text or pair."""
        some = self.tokenize_texts(run.model, run.processor, [Labelled(tuple(one), run.processor.labels[0]) for one in texts])
        size = self.options.batch_size
        parts = [
            label_logits(run.model, collate(some, np.arange(at, min(at + size, len(some))))).softmax(-1) for at in range(0, len(some), size)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, len(run.processor.labels))

    @classmethod
    def example(cls, folder: Path) -> Example:
        path = folder / "examples.tsv"
        path.write_text("".join(f"item {n} is {'fine' if n % 2 else 'broken'}\t{'good' if n % 2 else 'bad'}\n" for n in range(60)))
        options = ClassifyOptions(data=str(path), tokenizer="word", vocab_size=100, max_length=16, batch_size=8)
        settings = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}
        return Example(options=options, settings=settings, input="item 7 is fine", broken="no label\n")

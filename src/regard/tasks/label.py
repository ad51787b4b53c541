"""A label for each word of a sentence (sequence labelling), from labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ..data.examples import Examples, Tagged, read_tagged
from ..models import Classifier
from ..runs import Run
from ._base import Example, NoOptions, Prediction
from ._classification import ClassificationOptions, ClassificationTask, label_logits
from ._classification_metrics import OUTSIDE
from ._labelled import collate


@dataclass(frozen=True, kw_only=True)
class LabelOptions(ClassificationOptions):
    """Which examples, and how much of a pretrained model may change."""

    metric: Literal["accuracy", "f1", "matthews", "f1_tokens"] = "f1_tokens"
    """Metric on validation that decides which parameters and which seed are kept; f1_tokens: micro F1 of all labels but O."""


class Label(ClassificationTask[LabelOptions]):
    """Train a model that labels each word of a sentence, from labelled examples.

    As in:  regard train label --data names.tsv --init-from runs/encoder --out runs/names
            regard train label --data names.jsonl --fields tokens tags --init-from runs/encoder --out runs/names
    """

    name = "label"
    Options = LabelOptions
    per_token = True

    def read(self) -> Examples[Tagged]:
        o = self.options
        return read_tagged(o.data, valid=o.valid, test=o.test, fields=o.fields, on_error=o.on_error, shares=o.shares)

    def texts_of(self, example: Tagged) -> Sequence[str]:
        return (" ".join(example.words),)

    def labels_of(self, example: Tagged) -> Sequence[str]:
        return example.labels

    def predict(self, run: Run[Classifier], inputs: Sequence[str], options: NoOptions) -> list[Prediction]:
        """Spaces separate the words."""
        sentences = [line.split() for line in inputs]
        answers = []
        for words, labels in zip(sentences, self.predict_tags(run, sentences), strict=True):
            found = [{"word": word, "label": label, "probability": p} for word, (label, p) in zip(words, labels, strict=True)]
            answers.append(
                Prediction(" ".join(f"{one['word']}/{one['label']}({one['probability']:.2f})" for one in found), {"words": found})
            )
        return answers

    @torch.no_grad()
    def predict_tags(self, run: Run[Classifier], sentences: Sequence[Sequence[str]]) -> list[list[tuple[str, float]]]:
        """The label of each word and its probability. Words without tokens get label O, probability 0."""
        labels, tokenizer = run.processor.labels, run.processor.tokenizer
        nothing = (OUTSIDE if OUTSIDE in labels else labels[0], 0.0)
        answers = []
        for words in sentences:
            some = self.tokenize_texts(run.model, run.processor, [Tagged(tuple(words), (labels[0],) * len(words))])
            parts = [label_logits(run.model, collate(some, np.array([n]))).softmax(-1) for n in range(len(some))]
            best, number = torch.cat([torch.zeros(0, len(labels)), *parts]).max(-1)
            with_tokens = sorted({n for n in tokenizer.encode_words(words)[1] if n >= 0})
            predicted = [(labels[n], p) for n, p in zip(number.tolist(), best.tolist(), strict=True)]
            found = dict(zip(with_tokens, predicted, strict=True))
            answers.append([found.get(n, nothing) for n in range(len(words))])
        return answers

    @classmethod
    def example(cls, folder: Path) -> Example:
        path = folder / "words.tsv"
        path.write_text("".join(f"item\tO\n{n}\tN\nis\tO\n{'fine' if n % 2 else 'broken'}\tJ\n\n" for n in range(60)))
        options = LabelOptions(data=str(path), tokenizer="word", vocab_size=100, max_length=16, batch_size=8)
        settings = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}
        return Example(options=options, settings=settings, input="item 7 is fine", broken="alone\n")

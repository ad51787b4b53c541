"""Labels of words: parts of speech, named entities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..data.examples import Tagged, read_tagged
from ..metrics.classification import OUTSIDE
from .classification import ClassificationTask
from .label_encoding import (
    EncodedExamples,
    LabelAnswer,
    label_names,
)
from .options import NoOptions
from .options.label import LabelDeclaration, LabelOptions
from .task import Prediction


class Label(LabelDeclaration, ClassificationTask[LabelOptions]):
    per_token = True
    read_examples = read_tagged
    loss_unit = "words"

    def texts_of(self, example: Tagged) -> Sequence[str]:
        return (" ".join(example.words),)

    def labels_of(self, example: Tagged) -> Sequence[str]:
        return example.labels

    def parse(self, text: str) -> Tagged:
        """Spaces separate the words."""
        words = tuple(text.split())
        return Tagged(words, (self.processor.labels[0],) * len(words))

    def input_text(self, example: Tagged) -> str:
        return " ".join(example.words)

    def merge(self, answers: list[LabelAnswer], rows: EncodedExamples, examples: Sequence[Tagged]) -> list[LabelAnswer]:
        """Answers of whole sentences: long ones have several rows."""
        parts: list[list[LabelAnswer]] = [[] for _ in examples]
        for number, one in zip(rows.example_E.tolist(), answers, strict=True):
            parts[number].append(one)
        empty = LabelAnswer(np.zeros((0, len(self.processor.labels)), np.float32), np.zeros(0, np.int64))
        return [LabelAnswer(*(np.concatenate(part) for part in zip(empty, *some, strict=True))) for some in parts]

    def lines(self, example: Tagged, answer: LabelAnswer) -> list[str]:
        """CoNLL lines: word, label, predicted label; a blank line after each sentence."""
        predicted = label_names(answer.logits.argmax(1), self.processor.labels)
        return [*map("\t".join, zip(example.words, label_names(answer.target, self.processor.labels), predicted, strict=False)), ""]

    def prediction(self, example: Tagged, answer: LabelAnswer, options: NoOptions) -> Prediction:
        """A line per word, as CoNLL has them, and a blank line after each sentence. Words without tokens get label O, probability 0."""
        labels, (_, numbers) = self.processor.labels, self.processor.tokenizer.encode_words(example.words)
        best_T, number_T = torch.from_numpy(answer.logits).softmax(-1).max(-1)
        predicted = zip(label_names(number_T.numpy(), labels), best_T.tolist(), strict=True)
        by_word = dict(zip(sorted({n for n in numbers if n >= 0}), predicted, strict=True))
        nothing = (OUTSIDE if OUTSIDE in labels else labels[0], 0.0)
        found = [
            {"word": word, "label": label, "probability": p}
            for word, (label, p) in ((word, by_word.get(n, nothing)) for n, word in enumerate(example.words))
        ]
        return Prediction("".join(f"{one['word']}\t{one['label']}\n" for one in found), {"words": found})

"""Labelled examples as token ids, and what a classifier answers to them.

BOS word word word EOS       a label per word: at its first token if the model reads both sides, else at its last

Texts, pairs and documents with one label are framed by `special_tokens`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import Ragged, Tokenizer
from ..data.batches import Numbers
from ..data.examples import Labelled, Tagged
from ..errors import NotSupported
from ..metrics.classification import classification_metrics, confusion_matrix, multi_label_metrics, value_metrics
from ..metrics.spans import has_spans, span_metrics
from ..models import LanguageModel, Model
from .options import MetricName
from .special_tokens import frame

METRICS: tuple[str, ...] = get_args(MetricName)
Target = Literal["class", "labels", "value"]  # one label of several; any number of labels; a number
_SEPARATOR = re.compile(r"\s*[|,]\s*")  # between several labels of a text
_Row = tuple[list[int], list[int], list[int], list[int]]  # ids, tokens of each segment, positions, labels


@dataclass(frozen=True)
class EncodedExamples:
    """Examples as token ids, with the positions of their labels (none: of the whole) and the numbers of these labels."""

    ids: Ragged
    segments: Ragged  # tokens of each segment in order, BOS and EOS included: of the texts of a pair, of the sentences of a document
    positions: Ragged
    labels: Ragged
    example_E: Numbers  # the number of the example that a row is of: long sentences have several
    target_EN: npt.NDArray[np.float32] | None = None  # a number per output, instead of labels: 0 or 1 for each, or a value
    per_token: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Numbers) -> tuple[EncodedExamples, Numbers]:
        """Some rows, for `collate`."""
        return self, index


@dataclass
class LabelBatch:
    ids_BL: Tensor
    n_B: Tensor
    segment_BL: Tensor
    at_T: Tensor  # rows, or positions in the flattened rows
    row_T: Tensor  # the row of each
    label_T: Tensor
    target_BN: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids_BL)


def encode_examples(
    examples: Sequence[Labelled] | Sequence[Tagged],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    length: int,
    body: Model | None = None,
    target: Target = "class",
) -> EncodedExamples:
    """Examples in at most `length` tokens, as `body` reads them. Long texts lose their end, of a pair the longer one first; sentences with
    labels of words are cut between words.

    Word labels are predicted at the last token of a word by a language model, else at its first. An unknown label is an error.
    """
    last = isinstance(body, LanguageModel)
    number = {label: n for n, label in enumerate(labels)}
    rows: list[_Row] = []
    counts: list[int] = []  # rows per example

    def number_of(label: str) -> int:
        if label not in number:
            raise NotSupported(
                f"the label {label!r} does not occur among the training examples, whose labels are {', '.join(map(repr, labels))[:200]}; "
                "train on examples of it, or leave out those that have it"
            )
        return number[label]

    for one in examples:
        before = len(rows)
        if isinstance(one, Tagged):
            rows += _by_words(*tokenizer.encode_words(one.words), [number_of(label) for label in one.labels], length, last, tokenizer)
        else:
            rows.append((*frame(tokenizer, one.texts, length, body), [], [number_of(one.label)] if target == "class" else []))
        counts.append(len(rows) - before)
    ids, segments_of, positions, wanted = zip(*rows, strict=True) if rows else ((), (), (), ())
    target_EN = None
    if target == "value":
        target_EN = np.array([[value_of(one.label)] for one in examples if isinstance(one, Labelled)], dtype=np.float32)
    elif target == "labels":
        chosen = [{number_of(name) for name in names_of(one.label)} for one in examples if isinstance(one, Labelled)]
        target_EN = np.array([[n in some for n in range(len(labels))] for some in chosen], dtype=np.float32)
    whose, per_token = np.repeat(np.arange(len(counts)), counts), any(isinstance(one, Tagged) for one in examples)
    return EncodedExamples(Ragged.of(ids), Ragged.of(segments_of), Ragged.of(positions), Ragged.of(wanted), whose, target_EN, per_token)


def names_of(label: str) -> list[str]:
    """Several labels of a text, separated by commas or vertical bars."""
    return [name for name in _SEPARATOR.split(label.strip()) if name]


def value_of(label: str) -> float:
    """A label that is a number."""
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise NotSupported(f"the label {label!r} is not a number, which --regression predicts; omit --regression to predict classes")
    return value


def _by_words(ids: list[int], words: list[int], labels: list[int], length: int, last: bool, tokenizer: Tokenizer) -> list[_Row]:
    """The sentence in rows of whole words, each with the positions of its labels. A word longer than a row loses its end."""
    rows: list[_Row] = []
    size, begin, done = length - 2, 0, -1  # words up to `done` have their position
    while begin < len(ids):
        end = min(begin + size, len(ids))
        while end < len(ids) and end > begin and words[end] == words[end - 1] >= 0:
            end -= 1
        end = end if end > begin else min(begin + size, len(ids))  # a word longer than a row
        positions: dict[int, int] = {}
        for position in range(begin, end):
            if words[position] > done and (last or words[position] not in positions):
                positions[words[position]] = position - begin + 1
        row = [tokenizer.begin_id, *ids[begin:end], tokenizer.end_id]
        rows.append((row, [len(row)], list(positions.values()), [labels[word] for word in positions]))
        begin, done = end, max(done, *positions, -1)
    return rows


def collate(some: EncodedExamples, index: Numbers) -> LabelBatch:
    ids_BL, n_B = some.ids.padded(index)
    tokens = [some.segments[one] for one in index]  # of each segment
    numbers = np.concatenate([np.arange(len(each)) for each in tokens])
    segment_BL = torch.zeros_like(ids_BL)
    segment_BL[torch.arange(ids_BL.shape[1]) < n_B[:, None]] = torch.from_numpy(np.repeat(numbers, np.concatenate(tokens)))
    row_T = torch.arange(len(index))
    at_T = row_T
    if some.per_token:
        row_T = row_T.repeat_interleave(torch.tensor([len(some.positions[one]) for one in index]))
        at_T = row_T * ids_BL.shape[1] + torch.from_numpy(np.concatenate([some.positions[one] for one in index]).astype(np.int64))
    label_T = torch.from_numpy(np.concatenate([some.labels[one] for one in index]).astype(np.int64))
    target_BN = None if some.target_EN is None else torch.from_numpy(some.target_EN[index])
    return LabelBatch(ids_BL, n_B, segment_BL, at_T, row_T, label_T, target_BN)


def summed_loss(logits_TN: Tensor, batch: LabelBatch, target: Target) -> Tensor:
    """Cross-entropy; for any number of labels that of each, their mean; for a value the squared error."""
    if target == "class":
        return F.cross_entropy(logits_TN, batch.label_T, reduction="sum")
    assert batch.target_BN is not None
    if target == "value":
        return F.mse_loss(logits_TN, batch.target_BN, reduction="sum")
    return F.binary_cross_entropy_with_logits(logits_TN, batch.target_BN, reduction="none").mean(1).sum()


class LabelAnswer(NamedTuple):
    """Logits of an example, (labels, N), and what they should say: the numbers of its labels, or a number per output."""

    logits: npt.NDArray[np.float32]
    target: npt.NDArray[Any]


def split_answers(logits_TN: Tensor, batch: LabelBatch) -> list[LabelAnswer]:
    """Answer per row of a batch."""
    logits, B = logits_TN.cpu().numpy(), len(batch.ids_BL)
    if batch.target_BN is not None:
        return [LabelAnswer(one[None], target) for one, target in zip(logits, batch.target_BN.cpu().numpy(), strict=True)]
    counts_B = np.bincount(batch.row_T.cpu().numpy(), minlength=B)
    ends = np.cumsum(counts_B)[:-1]
    return list(map(LabelAnswer, np.split(logits, ends), np.split(batch.label_T.cpu().numpy(), ends)))


def label_loss(answers: Sequence[LabelAnswer]) -> float:
    """Mean cross-entropy of the labels."""
    logits_TN, label_T = (torch.from_numpy(np.concatenate(part)) for part in zip(*answers, strict=True))
    return float(F.cross_entropy(logits_TN, label_T))


def label_metrics(answers: Sequence[LabelAnswer], labels: Sequence[str], target: Target, per_token: bool) -> dict[str, float]:
    """Metrics that fit what is predicted."""
    logits_TN = np.concatenate([one.logits for one in answers])
    if target == "value":
        return value_metrics(np.array([one.target[0] for one in answers]), logits_TN[:, 0])
    if target == "labels":
        return multi_label_metrics(np.stack([one.target for one in answers]), (logits_TN > 0).astype(np.float32))
    found = classification_metrics(confusion_of(answers, labels), labels)
    if not per_token:
        return {name: value for name, value in found.items() if name != "f1_tokens"}
    if not has_spans(labels):
        return found
    true, predicted = zip(*((label_names(one.target, labels), label_names(one.logits.argmax(1), labels)) for one in answers), strict=True)
    return {**found, **span_metrics(true, predicted)}


def confusion_of(answers: Sequence[LabelAnswer], labels: Sequence[str]) -> Numbers:
    """Counts (true label, predicted label)."""
    logits_TN, true_T = (np.concatenate(part) for part in zip(*answers, strict=True))
    return confusion_matrix(true_T, logits_TN.argmax(1), len(labels))


def label_names(numbers: npt.NDArray[Any], labels: Sequence[str]) -> list[str]:
    """Labels by their numbers."""
    return [labels[n] for n in numbers]

"""Labelled examples as token ids, and metrics of how they are classified.

BOS word word word EOS       a label per word: at its first token if the model reads both sides, else at its last

Texts, pairs and documents with one label are framed by `_framing`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import Ragged, Tokenizer
from ..data.batches import Numbers
from ..data.examples import Labelled, Tagged
from ..data.hf_tokenizer import SpecialTokens
from ..errors import NotSupported
from ..models import Classifier, LanguageModel, Model
from ._framing import frame

MetricName = Literal["accuracy", "f1", "f1_micro", "matthews", "f1_tokens", "f1_spans", "pearson", "spearman", "mse"]
METRICS: tuple[str, ...] = get_args(MetricName)
Target = Literal["class", "labels", "value"]  # one label of several; any number of labels; a number
_SEPARATOR = re.compile(r"\s*[|,]\s*")  # between several labels of a text
OUTSIDE = "O"  # the label of words that are nothing in particular
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

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class LabelBatch:
    ids_BL: Tensor
    n_B: Tensor
    segment_BL: Tensor
    at_T: Tensor  # rows, or positions in the flattened rows
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
    number, special = {label: n for n, label in enumerate(labels)}, SpecialTokens.of(tokenizer)
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
            rows += _by_words(*tokenizer.encode_words(one.words), [number_of(label) for label in one.labels], length, last, special)
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
    whose = np.repeat(np.arange(len(counts)), counts)
    return EncodedExamples(Ragged.of(ids), Ragged.of(segments_of), Ragged.of(positions), Ragged.of(wanted), whose, target_EN)


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


def _by_words(ids: list[int], words: list[int], labels: list[int], length: int, last: bool, special: SpecialTokens) -> list[_Row]:
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
        row = [special.begin, *ids[begin:end], special.end]
        rows.append((row, [len(row)], list(positions.values()), [labels[word] for word in positions]))
        begin, done = end, max(done, *positions, -1)
    return rows


def collate(some: EncodedExamples, index: Numbers) -> LabelBatch:
    ids_BL, n_B = some.ids.padded(index)
    tokens = [some.segments[one] for one in index]  # of each segment
    numbers = np.concatenate([np.arange(len(each)) for each in tokens])
    segment_BL = torch.zeros_like(ids_BL)
    segment_BL[torch.arange(ids_BL.shape[1]) < n_B[:, None]] = torch.from_numpy(np.repeat(numbers, np.concatenate(tokens)))
    at = [row * ids_BL.shape[1] + int(position) for row, one in enumerate(index) for position in some.positions[one]]
    at_T = torch.tensor(at, dtype=torch.long) if len(some.positions.values) else torch.arange(len(index))
    label_T = torch.from_numpy(np.concatenate([some.labels[one] for one in index]).astype(np.int64))
    target_BN = None if some.target_EN is None else torch.from_numpy(some.target_EN[index])
    return LabelBatch(ids_BL, n_B, segment_BL, at_T, label_T, target_BN)


# -- metrics -----------------------------------------------------------------------------------------------------------


def summed_loss(logits_TN: Tensor, batch: LabelBatch, target: Target) -> Tensor:
    """Cross-entropy; for any number of labels that of each, their mean; for a value the squared error."""
    if target == "class":
        return F.cross_entropy(logits_TN, batch.label_T, reduction="sum")
    assert batch.target_BN is not None
    if target == "value":
        return F.mse_loss(logits_TN, batch.target_BN, reduction="sum")
    return F.binary_cross_entropy_with_logits(logits_TN, batch.target_BN, reduction="none").mean(1).sum()


@torch.no_grad()
def all_logits(
    model: Classifier, some: EncodedExamples, batch_size: int = 32, target: Target = "class"
) -> tuple[npt.NDArray[np.float32], float]:
    """logits_TN of all examples in their order (of words: row by row), and the mean loss."""
    order, found, total = np.argsort(-some.ids.lengths, kind="stable"), dict[int, npt.NDArray[np.float32]](), 0.0
    sizes = some.positions.lengths if len(some.positions.values) else np.ones(len(some), dtype=np.int64)
    for at in range(0, len(order), batch_size):
        index = order[at : at + batch_size]
        batch = collate(some, index)
        logits_TN = label_logits(model, batch).float()
        total += float(summed_loss(logits_TN, batch, target))
        found |= zip(index.tolist(), np.split(logits_TN.numpy(), np.cumsum(sizes[index])[:-1]), strict=True)
    whole_TN = np.concatenate([found[n] for n in range(len(some))]) if found else np.zeros((0, 0), dtype=np.float32)
    return whole_TN, total / max(len(whole_TN), 1)


def confusion(model: Classifier, some: EncodedExamples, count: int, batch_size: int = 32) -> tuple[Numbers, float]:
    """Counts (true label, predicted label), and the loss in nats per label."""
    logits_TN, loss = all_logits(model, some, batch_size)
    return counted(some.labels.values, logits_TN.argmax(1), count), loss


def counted(true_T: npt.NDArray[Any], predicted_T: npt.NDArray[Any], count: int) -> Numbers:
    """Counts (true label, predicted label)."""
    counts = np.zeros((count, count), dtype=np.int64)
    np.add.at(counts, (true_T, predicted_T), 1)
    return counts


def by_sentence(numbers_T: npt.NDArray[Any], some: EncodedExamples, labels: Sequence[str]) -> list[list[str]]:
    """Labels of words by sentence, from their numbers row by row."""
    words_S = np.bincount(some.example_E, some.positions.lengths, minlength=1).astype(np.int64)
    return [[labels[n] for n in part] for part in np.split(numbers_T, np.cumsum(words_S)[:-1])]


def label_logits(model: Classifier, batch: LabelBatch) -> Tensor:
    """logits_TN at the positions of the labels."""
    return labels_and_penalty(model, batch)[0]


def labels_and_penalty(model: Classifier, batch: LabelBatch) -> tuple[Tensor, Tensor | None]:
    """logits_TN at the positions of the labels, and what the model adds to the loss of each text."""
    logits, penalty_B = model.classify(batch.ids_BL, batch.n_B, batch.segment_BL)
    return logits.flatten(0, -2)[batch.at_T], penalty_B


def classification_metrics(confusion_NN: Numbers, labels: Sequence[str]) -> dict[str, float]:
    """Of counts (true label, predicted label): accuracy; macro F1; Matthews' correlation; micro F1 of all labels but "O"."""
    true, predicted = confusion_NN.sum(1).astype(float), confusion_NN.sum(0).astype(float)
    both, total = np.diag(confusion_NN).astype(float), true.sum()
    seen = true + predicted > 0
    spread = (total**2 - (predicted**2).sum()) * (total**2 - (true**2).sum())
    inside = np.array([label != OUTSIDE for label in labels])
    return {
        "accuracy": float(both.sum() / total),
        "f1": float((2 * both[seen] / (true + predicted)[seen]).mean()),
        "matthews": float((both.sum() * total - (predicted * true).sum()) / spread**0.5) if spread > 0 else 0.0,
        "f1_tokens": float(2 * both[inside].sum() / max((true + predicted)[inside].sum(), 1.0)),
    }


def multi_label_metrics(true_EN: npt.NDArray[Any], predicted_EN: npt.NDArray[Any]) -> dict[str, float]:
    """Of 0 and 1 per example and label: share of examples whose labels are all right; mean F1 of the labels; F1 of all together."""
    both, either = (true_EN * predicted_EN).sum(0), (true_EN + predicted_EN).sum(0)
    seen = either > 0
    return {
        "accuracy": float((true_EN == predicted_EN).all(1).mean()),
        "f1": float((2 * both[seen] / either[seen]).mean()) if seen.any() else 0.0,
        "f1_micro": float(2 * both.sum() / max(either.sum(), 1)),
    }


def value_metrics(true_E: npt.NDArray[Any], predicted_E: npt.NDArray[Any]) -> dict[str, float]:
    """Pearson's and Spearman's correlation, and the mean squared error; a correlation with a constant is 0."""
    ranks = (_ranks(true_E), _ranks(predicted_E))
    squared = float(((true_E.astype(np.float64) - predicted_E) ** 2).mean())
    return {"pearson": _correlation(true_E, predicted_E), "spearman": _correlation(*ranks), "mse": squared}


def _correlation(a_E: npt.NDArray[Any], b_E: npt.NDArray[Any]) -> float:
    a, b = (x.astype(np.float64) - x.mean(dtype=np.float64) for x in (a_E, b_E))
    size = float((a**2).sum() * (b**2).sum()) ** 0.5
    return float((a * b).sum()) / size if size > 0 else 0.0


def _ranks(values_E: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, which, counts = np.unique(values_E, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def confusion_rows(confusion_NN: Numbers, labels: Sequence[str]) -> list[tuple[str, int, int, float, float]]:
    """Label, examples, predictions, precision and recall of each label; a share of nothing is nan."""
    rows = []
    for n, label in enumerate(labels):
        true, predicted, both = int(confusion_NN[n].sum()), int(confusion_NN[:, n].sum()), int(confusion_NN[n, n])
        rows.append((label, true, predicted, both / predicted if predicted else float("nan"), both / true if true else float("nan")))
    return rows

"""Labelled examples as token ids, and metrics of how they are classified.

BOS text EOS                 a label of the text
BOS text EOS text EOS        of the pair; an encoder gets segment numbers
BOS word word word EOS       a label per word: at its first token if the model reads both sides, else at its last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import Ragged, Tokenizer
from ..data.batches import Numbers
from ..data.examples import Labelled, Tagged
from ..data.hf_tokenizer import SpecialTokens
from ..errors import NotSupported
from ..models import Classifier

MetricName = Literal["accuracy", "f1", "matthews", "f1_tokens"]
METRICS: tuple[str, ...] = get_args(MetricName)
OUTSIDE = "O"  # the label of words that are nothing in particular
_Row = tuple[list[int], int, list[int], list[int]]  # ids, tokens of the first text, positions, labels


@dataclass(frozen=True)
class EncodedExamples:
    """Examples as token ids, with the positions of their labels (none: of the whole) and the numbers of these labels."""

    ids: Ragged
    first_E: Numbers  # tokens of the first text, its BOS and EOS included
    positions: Ragged
    labels: Ragged

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class LabelBatch:
    ids_BL: Tensor
    n_B: Tensor
    segment_BL: Tensor
    at_T: Tensor  # rows, or positions in the flattened rows
    label_T: Tensor

    def __len__(self) -> int:
        return len(self.ids_BL)


def encode_examples(
    examples: Sequence[Labelled] | Sequence[Tagged], tokenizer: Tokenizer, labels: Sequence[str], length: int, last: bool
) -> EncodedExamples:
    """Examples in at most `length` tokens. Long texts lose their end, of a pair the longer one first; long sentences are cut between words.

    Word labels are predicted at the `last` token of a word, or at its first. An unknown label is an error.
    """
    number, special = {label: n for n, label in enumerate(labels)}, SpecialTokens.of(tokenizer)
    rows: list[_Row] = []

    def number_of(label: str) -> int:
        if label not in number:
            raise NotSupported(
                f"the label {label!r} does not occur among the training examples, whose labels are {', '.join(map(repr, labels))[:200]}; "
                "train on examples of it, or leave out those that have it"
            )
        return number[label]

    for one in examples:
        if isinstance(one, Tagged):
            rows += _by_words(*tokenizer.encode_words(one.words), [number_of(label) for label in one.labels], length, last, special)
            continue
        texts = _truncated(tokenizer.encode_all(list(one.texts)), length - len(one.texts) - 1)
        rows.append(([special.begin, *(i for text in texts for i in (*text, special.end))], len(texts[0]) + 2, [], [number_of(one.label)]))
    ids, first, positions, numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
    return EncodedExamples(Ragged.of(ids), np.array(first, dtype=np.int64), Ragged.of(positions), Ragged.of(numbers))


def _truncated(texts: list[list[int]], at_most: int) -> list[list[int]]:
    """At most this many tokens in all: the longest text loses its end."""
    while (over := sum(map(len, texts)) - at_most) > 0:
        longest = max(texts, key=len)
        other = max((len(text) for text in texts if text is not longest), default=0)
        del longest[max(len(longest) - over, min(other, len(longest) - 1)) :]
    return texts


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
        rows.append((row, end - begin + 2, list(positions.values()), [labels[word] for word in positions]))
        begin, done = end, max(done, *positions, -1)
    return rows


def collate(some: EncodedExamples, index: Numbers) -> LabelBatch:
    ids_BL, n_B = some.ids.padded(index)
    position_L = torch.arange(ids_BL.shape[1])
    segment_BL = (position_L >= torch.from_numpy(some.first_E[index])[:, None]) & (position_L < n_B[:, None])
    at = [row * ids_BL.shape[1] + int(position) for row, one in enumerate(index) for position in some.positions[one]]
    at_T = torch.tensor(at, dtype=torch.long) if len(some.positions.values) else torch.arange(len(index))
    label_T = torch.from_numpy(np.concatenate([some.labels[one] for one in index]).astype(np.int64))
    return LabelBatch(ids_BL, n_B, segment_BL.long(), at_T, label_T)


# -- metrics -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def confusion(model: Classifier, some: EncodedExamples, count: int, batch_size: int = 32) -> tuple[Numbers, float]:
    """Counts (true label, predicted label), and the loss in nats per label."""
    counts, total = np.zeros((count, count), dtype=np.int64), 0.0
    order = np.argsort(-some.ids.lengths, kind="stable")
    for at in range(0, len(order), batch_size):
        one = collate(some, order[at : at + batch_size])
        logits_TN = label_logits(model, one)
        total += float(F.cross_entropy(logits_TN, one.label_T, reduction="sum"))
        np.add.at(counts, (one.label_T.numpy(), logits_TN.argmax(1).numpy()), 1)
    return counts, total / max(int(counts.sum()), 1)


def label_logits(model: Classifier, batch: LabelBatch) -> Tensor:
    """logits_TN at the positions of the labels."""
    return model(batch.ids_BL, batch.n_B, batch.segment_BL).flatten(0, -2)[batch.at_T]


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


def confusion_rows(confusion_NN: Numbers, labels: Sequence[str]) -> list[tuple[str, int, int, float, float]]:
    """Label, examples, predictions, precision and recall of each label; a share of nothing is nan."""
    rows = []
    for n, label in enumerate(labels):
        true, predicted, both = int(confusion_NN[n].sum()), int(confusion_NN[:, n].sum()), int(confusion_NN[n, n])
        rows.append((label, true, predicted, both / predicted if predicted else float("nan"), both / true if true else float("nan")))
    return rows

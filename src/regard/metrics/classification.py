"""Metrics of classification, of several labels per example, and of regression; each a function of arrays.

accuracy, f1 (macro), matthews, f1_tokens    of a confusion matrix
accuracy, f1, f1_micro                       of 0 and 1 per example and label
pearson, spearman, mse                       of numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
OUTSIDE = "O"  # the label of words that are nothing in particular
COLUMNS = ("label", "support", "predicted", "precision", "recall")  # of `confusion_rows`


def confusion_matrix(true_T: npt.NDArray[Any], predicted_T: npt.NDArray[Any], classes: int) -> Numbers:
    """Counts (true label, predicted label).

    Args:
        true_T: numbers of the true labels.
        predicted_T: numbers of the predicted labels.
        classes: number of labels.
    """
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (true_T, predicted_T), 1)
    return counts


def classification_metrics(confusion_NN: Numbers, labels: Sequence[str]) -> dict[str, float]:
    """Accuracy, macro F1, Matthews' correlation, and micro F1 of all labels but "O".

    Args:
        confusion_NN: counts (true label, predicted label).
        labels: names of the labels.
    """
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
    """Label, support, predictions, precision and recall of each label; a share of nothing is nan.

    Args:
        confusion_NN: counts (true label, predicted label).
        labels: names of the labels.
    """
    rows = []
    for n, label in enumerate(labels):
        true, predicted, both = int(confusion_NN[n].sum()), int(confusion_NN[:, n].sum()), int(confusion_NN[n, n])
        rows.append((label, true, predicted, both / predicted if predicted else float("nan"), both / true if true else float("nan")))
    return rows


def confusions(confusion_NN: Numbers, labels: Sequence[str], most: int = 3) -> list[str]:
    """The most frequent confusions in words.

    Args:
        confusion_NN: counts (true label, predicted label).
        labels: names of the labels.
        most: maximum number of confusions.
    """
    worst = [(int(confusion_NN[i, j]), a, b) for i, a in enumerate(labels) for j, b in enumerate(labels) if i != j]
    return [f"{a} taken for {b} {n} times" for n, a, b in sorted(worst, key=lambda one: -one[0])[:most] if n]


def multi_label_metrics(true_EN: npt.NDArray[Any], predicted_EN: npt.NDArray[Any]) -> dict[str, float]:
    """Share of examples whose labels are all right; mean F1 of the labels; F1 of all together.

    Args:
        true_EN: 0 or 1 per example and label.
        predicted_EN: 0 or 1 per example and label.
    """
    both, either = (true_EN * predicted_EN).sum(0), (true_EN + predicted_EN).sum(0)
    seen = either > 0
    return {
        "accuracy": float((true_EN == predicted_EN).all(1).mean()),
        "f1": float((2 * both[seen] / either[seen]).mean()) if seen.any() else 0.0,
        "f1_micro": float(2 * both.sum() / max(either.sum(), 1)),
    }


def value_metrics(true_E: npt.NDArray[Any], predicted_E: npt.NDArray[Any]) -> dict[str, float]:
    """Pearson's and Spearman's correlation, and the mean squared error; a correlation with a constant is 0.

    Args:
        true_E: numbers to predict.
        predicted_E: predicted numbers.
    """
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

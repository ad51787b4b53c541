"""Metrics of classification, from a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.batches import Numbers

METRICS = ("accuracy", "f1", "matthews", "f1_tokens")
OUTSIDE = "O"  # the label of words that are nothing in particular


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

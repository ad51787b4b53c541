"""Baselines of classifiers of texts and of words, fitted to the training part in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..baselines import LinearText, most_frequent
from ..data.examples import Labelled, Tagged
from ..metrics.classification import classification_metrics, confusion_matrix
from ..metrics.spans import has_spans, span_metrics

MOST = 30_000  # training texts that the linear classifier is fitted to


def label_baselines(
    train: Sequence[Labelled] | Sequence[Tagged], examples: Sequence[Labelled] | Sequence[Tagged], labels: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Metrics of the most frequent label and of a linear classifier, or of the most frequent label of each word.

    Args:
        train: training part.
        examples: examples to predict.
        labels: names of the labels.
    """
    number = {label: n for n, label in enumerate(labels)}
    if isinstance(train[0], Tagged):
        return {"most frequent label of each word": _by_words(train, examples, number)}  # type: ignore[arg-type]
    texts = [(one.texts, number[one.label]) for one in train if isinstance(one, Labelled)]
    wanted = [(one.texts, number[one.label]) for one in examples if isinstance(one, Labelled)]
    usual = most_frequent(np.array([label for _, label in texts]))
    documents, classes = zip(*texts[:: -(-len(texts) // MOST)], strict=True)
    linear = LinearText.fit(documents, classes, len(labels)).logits([some for some, _ in wanted]).argmax(1).numpy()
    true = np.array([label for _, label in wanted])
    found = {"most frequent label": np.full(len(true), usual), "TF-IDF + logistic regression": linear}
    scored = {name: classification_metrics(confusion_matrix(true, predicted, len(labels)), labels) for name, predicted in found.items()}
    return {name: {metric: value for metric, value in one.items() if metric != "f1_tokens"} for name, one in scored.items()}


def _by_words(train: Sequence[Tagged], examples: Sequence[Tagged], number: dict[str, int]) -> dict[str, float]:
    counts: dict[str, Counter[str]] = {}
    for one in train:
        for word, label in zip(one.words, one.labels, strict=False):
            counts.setdefault(word, Counter())[label] += 1
    usual = sum(counts.values(), Counter()).most_common(1)[0][0]
    best = {word: some.most_common(1)[0][0] for word, some in counts.items()}
    true = [list(one.labels) for one in examples]
    found = [[best.get(word, usual) for word in one.words] for one in examples]
    labels = list(number)
    true_T, found_T = (np.array([number[label] for some in each for label in some]) for each in (true, found))
    metrics = classification_metrics(confusion_matrix(true_T, found_T, len(labels)), labels)
    return {**metrics, **span_metrics(true, found)} if has_spans(labels) else metrics

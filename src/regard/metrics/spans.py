"""Spans of labelled words (names of persons, places), and F1 of them, by the rules of conlleval and of seqeval's default mode.

Labels are `O`, or a letter and a type: `B-PER` begins a span, `I-PER` is inside, `E-PER` ends one, `S-PER` is a whole one. A label continues
the span before it if that has not ended (B, I), it says so itself (I, E), and both have the same type; else it begins another one. So a
span that begins with I counts. A span is right if its type and both its ends are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Span = tuple[str, int, int]  # type, first word, last word
_LABEL = re.compile("[BIES](-.*)?")


def has_spans(labels: Iterable[str]) -> bool:
    """Return whether these labels, but O, all tell where they are in a span.

    Args:
        labels: all labels.
    """
    inside = [label for label in labels if label != "O"]
    return bool(inside) and all(_LABEL.fullmatch(label) for label in inside)


def find_spans(labels: Sequence[str]) -> list[Span]:
    """The spans of a sentence, in order.

    Args:
        labels: label of each word.
    """
    spans: list[Span] = []
    before, kind, begin = "O", "", 0
    for at, label in enumerate([*labels, "O"]):
        place, this = label[:1], label[2:] or "_"
        if not (before in "BI" and place in "IE" and this == kind):
            if before != "O":
                spans.append((kind, begin, at - 1))
            begin = at
        before, kind = place, this
    return spans


def span_metrics(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 over all spans of all sentences (micro); a share of nothing is 0.

    Args:
        true: labels of each sentence.
        predicted: predicted labels of each sentence.
    """
    pairs = [(set(find_spans(a)), set(find_spans(b))) for a, b in zip(true, predicted, strict=True)]
    both, wanted, found = (sum(map(len, sets)) for sets in ((a & b for a, b in pairs), (a for a, _ in pairs), (b for _, b in pairs)))
    return {
        "precision_spans": both / found if found else 0.0,
        "recall_spans": both / wanted if wanted else 0.0,
        "f1_spans": 2 * both / (wanted + found) if wanted + found else 0.0,
    }

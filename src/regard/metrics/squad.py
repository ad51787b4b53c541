"""Quality of answers, by the rules of SQuAD's evaluation script (that of version 2.0, which treats 1.1 alike), and a baseline without a model.

    normalised     lower case, without punctuation, without the articles a, an, the, white space collapsed
    exact_match    1 if prediction and gold answer are equal when normalised
    f1             of their words, as bags: harmonic mean of precision and recall; of an empty one 1 if both are empty, else 0
    several        the largest over the gold answers
    no answer      the gold answer is empty, and so is that of a question whose gold answers are articles or punctuation alone

The rules are made for English: they know no articles but English ones, and split words at white space, so that an answer in Chinese or
Japanese is one word.

Paper: Rajpurkar et al. 2016, arXiv:1606.05250; 2018, "Know what you don't know: unanswerable questions for SQuAD", arXiv:1806.03822.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from math import log

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORDS = re.compile(r"\w+(?:['’]\w+)?|[^\w\s]")
_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_LONGEST = 10  # words of an answer of the baseline


def normalised(text: str) -> str:
    """Text as it is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1 if both are equal when normalised, else 0.

    Args:
        prediction: predicted answer; "" for none.
        gold: gold answer; "" for none.
    """
    return float(normalised(prediction) == normalised(gold))


def f1(prediction: str, gold: str) -> float:
    predicted, wanted = normalised(prediction).split(), normalised(gold).split()
    if not predicted or not wanted:
        return float(predicted == wanted)
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * common / (len(predicted) + len(wanted))


def gold_answers(answers: Sequence[str]) -> list[str]:
    """Answers as they count; one empty answer if there is none.

    Args:
        answers: gold answers of a question; none if it has no answer.
    """
    return [text for text in answers if normalised(text)] or [""]


def score_answer(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 with the gold answer that fits best.

    Args:
        prediction: predicted answer; "" for none.
        answers: gold answers; none if the question has no answer.
    """
    golds = gold_answers(answers)
    return max(exact_match(prediction, gold) for gold in golds), max(f1(prediction, gold) for gold in golds)


def score_answers(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Means over all questions; where some have no answer, also over those that have one, and those that have none.

    Args:
        predictions: predicted answer of each question; "" for none.
        answers: gold answers of each question.
    """
    scores_E2 = np.array([score_answer(text, golds) for text, golds in zip(predictions, answers, strict=True)])
    answered_E = np.array([gold_answers(golds) != [""] for golds in answers])
    exact, overlap = scores_E2.mean(0).tolist()
    found = {"exact_match": exact, "f1": overlap}
    if not answered_E.all():
        found["no_answer_accuracy"] = float(scores_E2[~answered_E, 0].mean())
        if answered_E.any():
            found["has_answer_exact_match"], found["has_answer_f1"] = scores_E2[answered_E].mean(0).tolist()
    return found


def best_threshold(margin_E: Sequence[float], spans: Sequence[str], answers: Sequence[Sequence[str]], never: float) -> float:
    """Threshold on log p(no answer) − log p(span), above which a question has no answer, with the highest F1.

    Args:
        margin_E: log p(no answer) − log p(span) of each question.
        spans: best span of each question.
        answers: gold answers of each question.
        never: threshold to return if all questions have an answer.
    """
    if all(gold_answers(golds) != [""] for golds in answers):
        return never
    gain_E = np.array([score_answer(span, golds)[1] - score_answer("", golds)[1] for span, golds in zip(spans, answers, strict=True)])
    order = np.argsort(np.asarray(margin_E), kind="stable")
    sorted_E = np.clip(np.asarray(margin_E, dtype=np.float64)[order], -never, never)
    total_E = np.concatenate([[0.0], np.cumsum(gain_E[order])])  # of giving the spans of the first n questions
    edges_E = np.concatenate([[sorted_E[0] - 1], (sorted_E[:-1] + sorted_E[1:]) / 2, [sorted_E[-1] + 1]])
    apart_E = np.concatenate([[True], sorted_E[:-1] < sorted_E[1:], [True]])  # between equal ones there is no edge
    return float(edges_E[np.where(apart_E, total_E, -np.inf).argmax()])


def sliding_window(question: str, context: str, answers: Container[str] | None = None) -> str:
    r"""A span by words in common alone, the baseline of the SQuAD paper (after Richardson et al. 2013).

    $$\mathrm{score}(\mathrm{span}) = \sum_{w \in \mathrm{question}} \log(1 + 1/c_w) \big/ d(w, \mathrm{span})$$

    over the words w of the question that are in the sentence; c_w is their number in the passage, d the distance in words. A span has no
    word of the question and no punctuation in it, and is as long as that allows.

    Args:
        question: question in words.
        context: passage that holds the answer.
        answers: answers to choose from, in lower case, such as those of the training data; None: any span.
    """
    asked = {word.lower() for word in _WORDS.findall(question) if word[0].isalnum()}
    counts = Counter(word.lower() for word in _WORDS.findall(context))
    best, answer = -1.0, ""
    for sentence in _SENTENCES.split(context):
        words = [(match[0].lower(), match.start(), match.end()) for match in _WORDS.finditer(sentence)]
        hits = [(n, log(1 + 1 / counts[word])) for n, (word, _, _) in enumerate(words) if word in asked]
        free = [word not in asked and word[0].isalnum() for word, _, _ in words]
        for first, last in _runs(free) if answers is None else _within(len(words)):
            text = sentence[words[first][1] : words[last][2]]
            if answers is None or text.lower() in answers:
                score = sum(gain / (first - n if n < first else max(n - last, 1)) for n, gain in hits)
                if score > best:
                    best, answer = score, text
    return answer


def _runs(free: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """First and last of each run of free words, at most `_LONGEST`."""
    first = 0
    while first < len(free):
        last = first
        while free[first] and last + 1 < len(free) and free[last + 1] and last - first + 1 < _LONGEST:
            last += 1
        if free[first]:
            yield first, last
        first = last + 1


def _within(size: int) -> Iterator[tuple[int, int]]:
    """First and last of all spans of at most `_LONGEST` words, the longer first."""
    for first in range(size):
        for last in range(min(first + _LONGEST, size) - 1, first - 1, -1):
            yield first, last

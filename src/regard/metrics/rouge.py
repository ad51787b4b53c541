"""Quality of summaries: ROUGE by the `rouge-score` package, how often they repeat themselves, and how much they take from the article.

rouge-score's own tokenizer keeps only a–z and 0–9: German loses its umlauts, and Japanese everything. Ours gives the same words for ASCII, so the
same scores; otherwise a word is a run of letters, digits and accents of any script, and scripts written without spaces count by character.
ROUGE-Lsum compares sentence by sentence; sentences end at . ! ? and their like before a space.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from .._extras import extra

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_ASCII = re.compile("[a-z0-9]+")
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？।])\s*|\n+")
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")  # how the names of their characters begin


def words(text: str) -> list[str]:
    """The words that ROUGE counts, in lower case."""
    text = text.lower()
    if text.isascii():
        return _ASCII.findall(text)
    found = [""]
    for character in unicodedata.normalize("NFC", text):
        if unicodedata.category(character)[0] not in "LNM":
            found.append("")
        elif unicodedata.name(character, "").startswith(_UNSPACED):
            found += [character, ""]
        else:
            found[-1] += character
    return [word for word in found if word]


def sentences(text: str) -> list[str]:
    return [part for part in (one.strip() for one in _END.split(text)) if part]


def lead(article: str, count: int) -> str:
    """The first sentences of an article: the baseline that is hard to beat on news.

    Args:
        article: text in any script.
        count: number of sentences.
    """
    return " ".join(sentences(article)[:count])


class Rouge:
    """F1 in percent, the mean over summaries. Made once: rouge-score takes seconds to import."""

    def __init__(self) -> None:
        with extra("rouge"):
            from rouge_score import rouge_scorer
        self._scorer = rouge_scorer.RougeScorer(TYPES, tokenizer=self)

    @staticmethod
    def tokenize(text: str) -> list[str]:
        return words(text)

    @cached_property
    def signature(self) -> str:
        from importlib.metadata import version

        return f"rouge-score:{version('rouge-score')}|f1|stemmer:no|case:lower|tok:words of any script, as a-z0-9 in ASCII|lsum:sentences"

    def __call__(self, found: Sequence[str], right: Sequence[str]) -> dict[str, float]:
        scores: list[dict[str, Any]] = [
            self._scorer.score("\n".join(sentences(wanted)), "\n".join(sentences(text))) for wanted, text in zip(right, found, strict=True)
        ]
        return {name: 100 * sum(one[name].fmeasure for one in scores) / max(len(scores), 1) for name in TYPES}


def repeated_trigrams(texts: Sequence[str]) -> float:
    """The share of all trigrams of words that occurred before in the same text.

    Args:
        texts: summaries; each is counted by itself.
    """
    total = distinct = 0
    for text in texts:
        pairs = list(pairwise(words(text)))
        trigrams = [(a, b, c) for (a, b), (_, c) in pairwise(pairs)]
        total, distinct = total + len(trigrams), distinct + len(set(trigrams))
    return (total - distinct) / max(total, 1)


def copied_words(texts: Sequence[str], articles: Sequence[str]) -> float:
    """The share of all words that occur in the article.

    Args:
        texts: summaries.
        articles: article of each.
    """
    total = copied = 0
    for text, article in zip(texts, articles, strict=True):
        mine, theirs = words(text), set(words(article))
        total, copied = total + len(mine), copied + sum(word in theirs for word in mine)
    return copied / max(total, 1)

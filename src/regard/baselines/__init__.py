"""Predictors without layers, fitted in seconds, that every trained model should beat. Tasks print them beside their own results.

| baseline | of |
|---|---|
| `LinearText` | classes of texts: TF-IDF of words and word pairs, logistic regression |
| `nearest_neighbour` | classes of images: the label of the nearest training image |
| `NGram` | the next token: counts of the last tokens, interpolated |
| `most_frequent` | any label: the most frequent one |
"""

from __future__ import annotations

from .linear_text import LinearText
from .nearest import most_frequent, nearest_neighbour
from .ngram import NGram

__all__ = ["LinearText", "NGram", "most_frequent", "nearest_neighbour"]

"""Predictors without layers, fitted in seconds, that every trained model should beat. Tasks print them beside their own results.

| baseline | of |
|---|---|
| `LinearText` | classes of texts: TF-IDF of words and word pairs, logistic regression |
| `nearest_neighbour` | classes of images: the label of the nearest training image |
| `NGram` | the next token: counts of the last tokens, interpolated |
| `fit_mixture` | the clusters of a set: a mixture of Gaussians, by expectation maximization |
| `Kernel` | the values of a function: the exact posterior of a Gaussian process |
| `most_frequent` | any label: the most frequent one |
"""

from __future__ import annotations

from .gaussian_process import Kernel as Kernel
from .linear_text import LinearText as LinearText
from .mixture import Mixture as Mixture
from .mixture import fit_mixture as fit_mixture
from .nearest import most_frequent as most_frequent
from .nearest import nearest_neighbour as nearest_neighbour
from .ngram import NGram as NGram

r"""Logistic regression over TF-IDF of words and of pairs of neighbouring words.

$$x_{dt} = \frac{(1 + \log n_{dt}) \big(1 + \log\frac{1 + D}{1 + D_t}\big)}{\lVert \cdot \rVert} \qquad
  \min_{W, b} \sum_d -\log\mathrm{softmax}(W x_d + b)_{y_d} + \frac{\lVert W \rVert^2}{2 C}$$

n counts a term t in a document d, D documents, D_t those that have the term. As scikit-learn's `TfidfVectorizer(ngram_range=(1, 2),
sublinear_tf=True)` and `LogisticRegression(C=3)`, up to how texts are split into words; terms of a single document are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

WORD = re.compile(r"\w+|[^\w\s]")
C = 3.0  # inverse strength of the regularisation
ITERATIONS = 40  # of L-BFGS
FEATURES = 100_000  # most frequent terms that are kept
LEAST = 2  # documents that have a term

Texts = Sequence[str]


class LinearText:
    """Linear classifier of texts, or of several texts each, whose terms are then told apart.

    Args:
        terms: number of each term.
        idf_T: inverse document frequency of each term.
        weight_TN: parameters by term and class.
        bias_N: parameters by class.
    """

    def __init__(self, terms: dict[str, int], idf_T: npt.NDArray[np.float64], weight_TN: Tensor, bias_N: Tensor):
        self.terms, self.idf_T, self.weight_TN, self.bias_N = terms, idf_T, weight_TN, bias_N

    @classmethod
    def fit(cls, documents: Sequence[Texts], labels: Sequence[int], classes: int) -> Self:
        """Fit to some documents.

        Args:
            documents: the texts of each document.
            labels: number of the class of each.
            classes: number of classes.
        """
        counts = [_terms(one) for one in documents]
        frequency = Counter(term for one in counts for term in one)
        terms = {term: number for number, (term, count) in enumerate(frequency.most_common(FEATURES)) if count >= LEAST}
        df_T = np.array([frequency[term] for term in terms], dtype=np.float64)
        idf_T = 1 + np.log((1 + len(documents)) / (1 + df_T))
        weight_TN, bias_N = fit_bags(_tfidf(counts, terms, idf_T), torch.tensor(labels), len(terms), classes)
        return cls(terms, idf_T, weight_TN, bias_N)

    def logits(self, documents: Sequence[Texts]) -> Tensor:
        """logits_DN of some documents.

        Args:
            documents: the texts of each document.
        """
        return _bag_of(_tfidf([_terms(one) for one in documents], self.terms, self.idf_T), self.weight_TN) + self.bias_N


def _terms(texts: Texts) -> Counter[str]:
    """Words and pairs of neighbouring words, marked with the number of their text from the second on."""
    found: Counter[str] = Counter()
    for number, text in enumerate(texts):
        words = [f"{number or ''}{word}" for word in WORD.findall(text.lower())]
        found.update(words)
        found.update(f"{one} {other}" for one, other in pairwise(words))
    return found


class Bags(NamedTuple):
    """Terms of documents, end to end, with their values."""

    term_I: Tensor
    x_I: Tensor
    start_D: Tensor


def _tfidf(counts: Sequence[Counter[str]], terms: dict[str, int], idf_T: npt.NDArray[np.float64]) -> Bags:
    """Values of the known terms of each document, of length 1."""
    starts, numbers, values = [0], [], []
    for one in counts:
        known = [(terms[term], count) for term, count in one.items() if term in terms]
        n, c = np.array(known, dtype=np.int64).reshape(-1, 2).T
        x = (1 + np.log(c)) * idf_T[n]
        numbers.append(n)
        values.append(x / max(float(np.linalg.norm(x)), 1e-12))
        starts.append(starts[-1] + len(n))
    return Bags(torch.from_numpy(np.concatenate(numbers)), torch.from_numpy(np.concatenate(values)).float(), torch.tensor(starts[:-1]))


def fit_bags(bags: Bags, label_D: Tensor, terms: int, classes: int) -> tuple[Tensor, Tensor]:
    """Minimize the regularized cross-entropy: weight_TN and bias_N.

    Args:
        bags: terms of the documents.
        label_D: number of the class of each document.
        terms: number of terms.
        classes: number of classes.
    """
    weight_TN, bias_N = (nn.Parameter(torch.zeros(shape)) for shape in ((terms, classes), (classes,)))
    optimizer = torch.optim.LBFGS([weight_TN, bias_N], max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = nn.functional.cross_entropy(_bag_of(bags, weight_TN) + bias_N, label_D, reduction="sum")
        total = (found + weight_TN.square().sum() / (2 * C)) / len(label_D)
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    return weight_TN.detach(), bias_N.detach()


def _bag_of(bags: Bags, weight_TN: Tensor) -> Tensor:
    """W x of each document."""
    return nn.functional.embedding_bag(bags.term_I, weight_TN, bags.start_D, mode="sum", per_sample_weights=bags.x_I)

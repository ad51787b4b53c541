r"""The next token by counts of the last ones, interpolated between lengths of context (Witten & Bell 1991).

$$p_n(w \mid h) = \frac{c(h w) + t(h)\, p_{n-1}(w \mid h')}{c(h) + t(h)} \qquad p_0 = \tfrac1N$$

c counts in the training text, t(h) is the number of different tokens seen after the context h, h' is h without its first token, N the size of
the vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
MIX = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing: contexts are known by 64 bits, so that different ones hardly ever meet


class NGram:
    """Counts of all sequences of up to `order` tokens.

    Args:
        ids: training text.
        vocabulary: number of tokens.
        order: tokens of the longest sequence, the predicted one among them.
    """

    def __init__(self, ids: Ids, vocabulary: int, order: int):
        self.vocabulary, self.order = vocabulary, order
        self.counts, self.contexts = [], []
        for n in range(order):
            key, token = _contexts(ids, n), ids[n:].astype(np.uint64)
            pairs, count = np.unique(_mixed(key, token), return_counts=True)
            first = np.unique(_mixed(key, token), return_index=True)[1]
            contexts, inverse = np.unique(key[first], return_inverse=True)
            kinds = np.bincount(inverse, minlength=len(contexts))
            total = np.bincount(inverse, weights=count, minlength=len(contexts))
            self.counts.append((pairs, count))
            self.contexts.append((contexts, total, kinds))

    def nats(self, ids: Ids) -> float:
        """Sum of −log p of all tokens of a text but the first, which has no context.

        Args:
            ids: text.
        """
        p = np.full(len(ids) - 1, 1 / self.vocabulary)
        for n in range(self.order):
            key, token = _contexts(ids, n), ids[n:].astype(np.uint64)
            if n == 0:
                key, token = key[1:], token[1:]
            count = _look_up(self.counts[n][0], self.counts[n][1], _mixed(key, token))
            total, kinds = (_look_up(self.contexts[n][0], values, key) for values in self.contexts[n][1:])
            part, seen = p[len(p) - len(key) :], total > 0
            part[seen] = ((count + kinds * part) / np.maximum(total + kinds, 1))[seen]
        return float(-np.log(p).sum())


def _contexts(ids: Ids, n: int) -> npt.NDArray[np.uint64]:
    """Keys of the n tokens before each token, from the first that has n."""
    key = np.full(len(ids) - n, n + 1, dtype=np.uint64)
    for back in range(n):
        key = _mixed(key, ids[back : len(ids) - n + back].astype(np.uint64))
    return key


def _mixed(key: npt.NDArray[np.uint64], token: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        x = (key ^ (token + np.uint64(1))) * MIX
        return x ^ (x >> np.uint64(29))


def _look_up(keys: npt.NDArray[np.uint64], values: npt.NDArray[np.generic], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """The value of each key; 0 of a key that is not there."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0).astype(np.float64)

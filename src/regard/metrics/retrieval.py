"""Metrics of retrieval: how often a right answer is among the nearest."""

from __future__ import annotations

from torch import Tensor


def recall_at(k: int, scores_QN: Tensor, right_QN: Tensor) -> float:
    """Share of queries with a right candidate among the k of the highest scores.

    Args:
        k: number of candidates that count.
        scores_QN: score of each candidate for each query.
        right_QN: True where a candidate is a right answer.
    """
    best_QK = scores_QN.topk(min(k, scores_QN.shape[1]), -1).indices
    return float(right_QN.gather(1, best_QK).any(-1).float().mean())

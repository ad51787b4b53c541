"""Word alignments read from the attention weights of a decoder.

Pairs are (i, j): source i, target j, counted from 0; in Pharaoh's format a line is `0-0 2-1 1-2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import NotSupported, ShapeError

Pairs = frozenset[tuple[int, int]]


def best(weights_LM: Tensor) -> Pairs:
    """Each target token with the source token it attends to most; none for a row of zeros."""
    if weights_LM.dim() != 2:
        raise ShapeError(f"an alignment needs weights_LM of one sentence; got {tuple(weights_LM.shape)}")
    top_LM = torch.zeros_like(weights_LM, dtype=torch.bool)
    top_LM = top_LM.scatter(1, weights_LM.argmax(1, keepdim=True), True) if weights_LM.numel() else top_LM
    return _pairs(weights_LM, top_LM)  # the first of equals


def above(weights_LM: Tensor, threshold: float) -> Pairs:
    """Every pair of at least this weight: a target may have several sources, or none."""
    if not 0 < threshold <= 1:
        raise NotSupported(f"threshold={threshold}: expected more than 0 and at most 1")
    return _pairs(weights_LM, weights_LM >= threshold)


def words(weights_LM: Tensor, targets: Sequence[int], sources: Sequence[int]) -> Tensor:
    """Weights between words from weights between tokens: summed over the tokens of a source word, averaged over those of a target word.

    `targets[l]` and `sources[m]` are the word numbers of the tokens; −1, or no number for the last tokens, means no word (an end token).
    A row sums to the weight that its tokens put on words.
    """
    of_target_LT, of_source_MS = (_members(numbers, size) for numbers, size in zip((targets, sources), weights_LM.shape, strict=True))
    sum_TS = of_target_LT.T @ weights_LM.double().cpu() @ of_source_MS
    return (sum_TS / of_target_LT.sum(0)[:, None].clamp(min=1)).to(weights_LM.dtype)


def pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """A line of Pharaoh's format, in the order of the target."""
    return " ".join(f"{i}-{j}" for i, j in sorted(set(pairs), key=lambda pair: (pair[1], pair[0])))


def _pairs(weights_LM: Tensor, chosen_LM: Tensor) -> Pairs:
    return frozenset((i, j) for j, i in (chosen_LM & (weights_LM > 0)).nonzero().tolist())


def _members(numbers: Sequence[int], size: int) -> Tensor:
    if len(numbers) > size:
        raise ShapeError(f"{len(numbers)} word numbers for {size} positions of the weights; give at most one per position")
    member = torch.zeros(size, max(numbers, default=-1) + 1, dtype=torch.float64)
    for position, number in enumerate(numbers):
        if number >= 0:
            member[position, number] = 1
    return member

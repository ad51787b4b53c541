"""Which source word each target word came from, read off where the decoder looked.

Pairs are (i, j): source i, target j, counted from 0; in Pharaoh's format a line is `0-0 2-1 1-2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import BadFile, NotSupported, ShapeError

Pairs = frozenset[tuple[int, int]]


def best(weights_LM: Tensor) -> Pairs:
    """Each target looks most at one source. A target that looks nowhere has none."""
    return _pairs(weights_LM, _tops(weights_LM, 1))


def mutual(weights_LM: Tensor) -> Pairs:
    """Pairs of which each side is the other's best: fewer, and surer."""
    return _pairs(weights_LM, _tops(weights_LM, 1) & _tops(weights_LM, 0))


def above(weights_LM: Tensor, threshold: float) -> Pairs:
    """Every pair with at least this weight: a target may have several sources, or none."""
    if not 0 < threshold <= 1:
        raise NotSupported(f"threshold={threshold}: expected more than 0 and at most 1")
    return _pairs(weights_LM, weights_LM >= threshold)


def words(weights_LM: Tensor, targets: Sequence[int], sources: Sequence[int]) -> Tensor:
    """Weights between words from weights between pieces: summed over the pieces of a source word, averaged over those of a target word.

    `targets[l]` and `sources[m]` are the numbers of the words that pieces belong to; −1, or no number for the last pieces, is no word
    (an end token). A row sums to what its pieces looked at words.
    """
    of_target_LT, of_source_MS = (_members(numbers, size) for numbers, size in zip((targets, sources), weights_LM.shape, strict=True))
    sum_TS = of_target_LT.T @ weights_LM.double().cpu() @ of_source_MS
    return (sum_TS / of_target_LT.sum(0)[:, None].clamp(min=1)).to(weights_LM.dtype)


def pharaoh(pairs: Iterable[tuple[int, int]]) -> str:
    """A line of Pharaoh's format, in the order of the target."""
    return " ".join(f"{i}-{j}" for i, j in sorted(set(pairs), key=lambda pair: (pair[1], pair[0])))


def from_pharaoh(line: str) -> Pairs:
    """The pairs of a line; `i?j` or anything else that is not `i-j` is refused."""
    pairs = [re.fullmatch(r"(\d+)-(\d+)", part, re.ASCII) for part in line.split()]
    if not all(pairs):
        wrong = line.split()[pairs.index(None)]
        raise BadFile(f"{wrong!r} is not a pair of an alignment; expected source-target, as in 0-0 2-1")
    return frozenset((int(pair[1]), int(pair[2])) for pair in pairs if pair)


def _tops(weights_LM: Tensor, axis: int) -> Tensor:
    """True at the largest of each row (axis 1) or column (axis 0), the first of equals."""
    if weights_LM.dim() != 2:
        raise ShapeError(f"an alignment is read from weights_LM, of one sentence; got {tuple(weights_LM.shape)}")
    top_LM = torch.zeros_like(weights_LM, dtype=torch.bool)
    return top_LM.scatter(axis, weights_LM.argmax(axis, keepdim=True), True) if weights_LM.numel() else top_LM


def _pairs(weights_LM: Tensor, chosen_LM: Tensor) -> Pairs:
    return frozenset((i, j) for j, i in (chosen_LM & (weights_LM > 0)).nonzero().tolist())


def _members(numbers: Sequence[int], size: int) -> Tensor:
    if len(numbers) > size:
        raise ShapeError(f"{len(numbers)} word numbers for {size} positions of the weights; give at most one a position")
    member = torch.zeros(size, max(numbers, default=-1) + 1, dtype=torch.float64)
    for place, number in enumerate(numbers):
        if number >= 0:
            member[place, number] = 1
    return member

"""Rows of text with masked tokens: which text is in which row, half of them with a second half from elsewhere, and what is masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..data import PAD, TokenizedText, Tokenizer
from ..data.batches import Numbers


@dataclass
class MaskedBatch:
    """Rows as the model reads them, and what was masked."""

    ids_BL: Tensor
    n_B: Tensor
    segment_BL: Tensor
    chosen_T: Tensor  # positions in the flattened rows
    wanted_T: Tensor
    unrelated_B: Tensor | None = None  # 0: the second half follows the first; 1: it is from another document

    def __len__(self) -> int:
        return len(self.ids_BL)


class MaskItem(NamedTuple):
    """Some rows of a plan."""

    rows: Rows
    some: Numbers


class Rows:
    """Text of each row, as numbers: start and length of the first half, of the second, and 1 if that is from another document."""

    def __init__(self, tokens: TokenizedText, tokenizer: Tokenizer, length: int, next_sentence: bool):
        self.tokens, self.tokenizer, self.next_sentence = tokens, tokenizer, next_sentence
        self.special_ids = torch.tensor(sorted(tokenizer.special_ids))
        self.word_ids = torch.tensor([i for i in range(len(tokenizer)) if i not in tokenizer.special_ids])
        self.size = length - (3 if next_sentence else 2)  # BOS, and an EOS per half

    def plan(self, epoch: int, seed: int = 0) -> Numbers:
        """(rows, 5), in a random order of (seed, epoch)."""
        generator = np.random.default_rng([seed, epoch])
        begin, size, document = self._cut(int(generator.integers(0, self.size)))
        rows = np.zeros((len(begin), 5), dtype=np.int64)
        rows[:, 0], rows[:, 1] = begin, size
        if self.next_sentence:
            first = np.clip((size * generator.uniform(0.3, 0.7, len(size))).round().astype(np.int64), 1, np.maximum(size - 1, 1))
            rows[:, 1], rows[:, 2], rows[:, 3] = first, begin + first, size - first
            _exchange(rows, document, generator, self.size)
        return rows[generator.permutation(len(rows))]

    def _cut(self, offset: int) -> tuple[Numbers, Numbers, Numbers]:
        """Start, length and document of each row; rows are equal slices of a document, offset per epoch."""
        begins, sizes, documents = [], [], []
        least = 2 if self.next_sentence else 1
        for number, (start, end) in enumerate(zip(self.tokens.starts.tolist(), self.tokens.ends.tolist(), strict=True)):
            last = end - (int(self.tokens.ids[end - 1]) == self.tokenizer.end_id)
            edges = np.arange(start + 1 + offset - self.size, last + self.size, self.size).clip(start + 1, last)
            size = np.diff(edges)
            begins.append(edges[:-1][size >= least])
            sizes.append(size[size >= least])
            documents.append(np.full(len(begins[-1]), number))
        return np.concatenate(begins), np.concatenate(sizes), np.concatenate(documents)


def _exchange(rows: Numbers, document: Numbers, generator: np.random.Generator, size: int) -> None:
    """Half of the rows swap their second halves, always with a row of another document; the rest keep theirs."""
    some = generator.permutation(len(rows))[: len(rows) // 2]
    some = some[np.argsort(document[some], kind="stable")]  # documents side by side: moving on by the largest number reaches another
    if len(some) == 0:
        return
    step = int(np.bincount(document[some]).max())
    given = np.roll(some, -step)
    other = document[given] != document[some]
    taken, source = some[other], given[other]
    second = rows[source, 2:4].copy()
    rows[taken, 2] = second[:, 0]
    rows[taken, 3] = np.minimum(second[:, 1], size - rows[taken, 1])
    rows[taken, 4] = 1


def mask_rows(rows: Rows, some: Numbers, mask_rate: float, generator: torch.Generator | None = None) -> MaskedBatch:
    """Some rows of a plan, with a share of their tokens chosen and mostly masked."""
    ids, segment, n = _filled(rows, some)
    ids_BL, segment_BL, n_B = torch.from_numpy(ids), torch.from_numpy(segment), torch.from_numpy(n)
    word_BL = ~torch.isin(ids_BL, rows.special_ids) & (torch.arange(ids_BL.shape[1]) < n_B[:, None])
    # a fixed number per row, at least one: the positions with the smallest random numbers
    chance_BL = torch.rand(ids_BL.shape, generator=generator).masked_fill(~word_BL, 2.0)
    count_B = (word_BL.sum(1) * mask_rate).round().long().clamp(min=1)
    rank_BL = chance_BL.argsort(1).argsort(1)
    chosen_T = ((rank_BL < count_B[:, None]) & word_BL).flatten().nonzero()[:, 0]
    wanted_T = ids_BL.flatten()[chosen_T]
    random_T = rows.word_ids[torch.randint(len(rows.word_ids), wanted_T.shape, generator=generator)]
    lot_T = torch.rand(wanted_T.shape, generator=generator)
    shown_T = torch.where(lot_T < 0.8, rows.tokenizer.mask_id, torch.where(lot_T < 0.9, random_T, wanted_T))
    ids_BL = ids_BL.flatten().index_copy(0, chosen_T, shown_T).view_as(ids_BL)
    return MaskedBatch(ids_BL, n_B, segment_BL, chosen_T, wanted_T, torch.from_numpy(some[:, 4]) if rows.next_sentence else None)


def _filled(rows: Rows, some: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Numbers]:
    read, begin, end = rows.tokens.ids, rows.tokenizer.begin_id, rows.tokenizer.end_id
    n = some[:, 1] + some[:, 3] + (3 if rows.next_sentence else 2)
    ids = np.full((len(some), int(n.max())), PAD, dtype=np.int64)
    segment = np.zeros_like(ids)
    for row, (first, size, second, more, _) in enumerate(some.tolist()):
        ids[row, 0], ids[row, size + 1] = begin, end
        ids[row, 1 : size + 1] = read[first : first + size]
        if rows.next_sentence:
            ids[row, size + 2 : size + 2 + more] = read[second : second + more]
            ids[row, size + 2 + more] = end
            segment[row, size + 2 : size + 3 + more] = 1
    return ids, segment, n

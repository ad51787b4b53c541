"""Sentences as token ids in one array, four bytes per token, with the offset of each sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ShapeError
from .tokens import BOS, EOS, PAD, Tokenizer, Tokenizers

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row i is `values[offsets[i] : offsets[i + 1]]`."""

    values: Ids
    offsets: Numbers

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        rows = list(rows)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """One after another."""
        if not parts:
            return cls.of([])
        starts = np.cumsum([0, *(part.offsets[-1] for part in parts)])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([*offsets, starts[-1:]]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Numbers:
        return np.diff(self.offsets)

    def padded(self, rows: Numbers) -> tuple[Tensor, Tensor]:
        """The chosen rows as one tensor (rows, longest), padded with PAD, and their lengths."""
        starts, counts = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(int(counts.max(initial=0)))
        inside = columns < counts[:, None]
        # beyond a row's end any valid index will do: `inside` masks it
        indices = np.minimum(starts[:, None] + columns, max(len(self.values) - 1, 0))
        table = np.where(inside, self.values[indices], PAD) if columns.size else np.zeros((len(rows), 0))
        return torch.from_numpy(table.astype(np.int64)), torch.from_numpy(counts)


@dataclass(frozen=True)
class Corpus:
    """Pairs as ids. The source ends in EOS, so no sentence is empty; the target goes from BOS to EOS."""

    source: Ragged
    target: Ragged

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ShapeError(f"{len(self.source)} source sentences and {len(self.target)} target sentences; they come in pairs")

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], tokenizers: Tokenizers, dropout: float = 0.0, seed: int = 0) -> Corpus:
        """Encode the pairs. With BPE-dropout, use another seed each epoch: `seed=1000 * seed + epoch`."""
        return cls(
            _encoded([s for s, _ in pairs], tokenizers.source, False, dropout, 2 * seed),
            _encoded([t for _, t in pairs], tokenizers.target, True, dropout, 2 * seed + 1),
        )


def _encoded(texts: list[str], tokenizer: Tokenizer, begin: bool, dropout: float, seed: int, chunk: int = 1 << 14) -> Ragged:
    # in chunks, so that lists of Python integers never hold a whole corpus
    parts = []
    for at in range(0, len(texts), chunk):
        some = tokenizer.encode_all(texts[at : at + chunk], dropout, (seed << 24) + at // chunk)
        parts.append(Ragged.of([BOS, *ids, EOS] if begin else [*ids, EOS] for ids in some))
    return Ragged.joined(parts)

"""Sentence pairs in two arrays: the text in UTF-8 end to end, and where each sentence ends. Nothing is a Python object until it is used.

A million pairs like those of Multi30k (12 words per side) take 0.16 GB, and 0.19 GB while they are read; as a list of tuples of strings they
take 0.31 GB, and strings beyond Latin-1 up to twice that (`tests/data/test_tables.py` measures bytes per pair).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from .splits import Pair


class PairStore:
    """Takes pairs one after another; `select` gives some of them as a sequence."""

    def __init__(self) -> None:
        self.text, self.ends = bytearray(), array("q", [0])

    def append(self, source: str, target: str) -> None:
        for side in (source, target):
            self.text += side.encode()
            self.ends.append(len(self.text))

    def __len__(self) -> int:
        return len(self.ends) // 2

    def select(self, index: npt.NDArray[np.int64]) -> PairList:
        return PairList(self, index)


class PairList(Sequence[Pair]):
    """Some pairs of a store, by their numbers.

    Args:
        store: all pairs.
        index: numbers of the chosen ones.
    """

    def __init__(self, store: PairStore, index: npt.NDArray[np.int64]):
        self._store, self._index = store, index

    @overload
    def __getitem__(self, at: int) -> Pair: ...
    @overload
    def __getitem__(self, at: slice) -> PairList: ...
    def __getitem__(self, at: int | slice) -> Pair | PairList:
        if isinstance(at, slice):
            return PairList(self._store, self._index[at])
        number = 2 * int(self._index[at])
        text, (begin, middle, end) = self._store.text, self._store.ends[number : number + 3]
        return text[begin:middle].decode(), text[middle:end].decode()

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Pair]:
        return (self[n] for n in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PairList({len(self):,} pairs)"

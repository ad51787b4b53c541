"""Pretrained word vectors in text files: a word and its numbers per line, as GloVe, word2vec and fastText write them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BadFile
from .lines import Fault, every_line


class WordVectors(NamedTuple):
    """Vectors of some words, vector_ND in the order of `words`."""

    words: tuple[str, ...]
    vector_ND: npt.NDArray[np.float32]


def vector_size(path: str | Path) -> int:
    """The numbers per word: what the first line has besides its word, or says if it is a header, `words size`."""
    first = next((line.split() for _, line, _ in every_line(path) if isinstance(line, str)), [])
    size = int(first[1]) if is_header(first) else len(first) - 1
    if size < 2:
        raise BadFile(
            f"{path}: expected a word and its numbers on each line, as GloVe and word2vec's text format have them; convert the file"
        )
    return size


def is_header(cells: Sequence[str]) -> bool:
    return len(cells) == 2 and all(cell.isdecimal() for cell in cells)


def read_vectors(path: str | Path, wanted: Collection[str]) -> WordVectors:
    """The vectors of the wanted words that the file has (.gz and .xz are decompressed), in bounded memory; the first counts if one is there twice."""
    size, found = vector_size(path), dict[str, npt.NDArray[np.float32]]()
    for number, (where, line, _) in enumerate(every_line(path)):
        if isinstance(line, Fault):
            raise BadFile(str(line))
        if line.partition(" ")[0] not in wanted or (number == 0 and is_header(line.split())):
            continue
        word, *numbers = line.rstrip().rsplit(" ", size)  # GloVe has words with spaces
        if word not in wanted or word in found:
            continue
        try:
            vector_D = np.array(numbers, dtype=np.float32)
        except ValueError:
            vector_D = np.array([], dtype=np.float32)
        if len(vector_D) != size or not np.isfinite(vector_D).all():
            raise BadFile(
                f"{where}: expected {word[:40]!r} and {size} finite numbers, as on the lines before; correct the line or refetch the file"
            )
        found[word] = vector_D
    return WordVectors(tuple(found), np.stack(list(found.values())) if found else np.zeros((0, size), np.float32))

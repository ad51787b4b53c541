"""Training, validation and test splits by content, not by position.

The part of a pair follows from a hash of its key (the source sentence; the number; the date). So pairs of one key are never on
both sides of a split, and pairs added later leave the others where they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..errors import NotSupported

Pair = tuple[str, str]
Row = tuple[str, str, str]  # key, source, target
Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")
PART_NAMES = {"train": ("train", "training"), "valid": ("valid", "val", "validation"), "test": ("test", "t10k")}  # of folders and files
SHARES = (0.05, 0.05)


def place(key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()[:6]) / 2**48


def part_of(shares: tuple[float, float]) -> Callable[[str], Part]:
    """The part a key belongs to, for shares (valid, test)."""
    valid, test = shares
    if valid < 0 or test < 0 or valid + test >= 1:
        raise NotSupported(f"shares {shares}: expected shares of validation and test from 0 up, whose sum is below 1")

    def part(key: str) -> Part:
        at = place(key)
        return "test" if at < test else "valid" if at < test + valid else "train"

    return part


def choose_parts(place_E: npt.NDArray[np.float64], shares: tuple[float, float] = SHARES) -> npt.NDArray[np.int8]:
    """The number in `PARTS` of each example, by the places of their keys.

    If few examples leave a requested part empty, it gets the next training key in the order of places, as long as there are keys to spare.
    """
    part_of(shares)  # checks them
    valid, test = shares
    chosen = np.where(place_E < test, 2, np.where(place_E < test + valid, 1, 0)).astype(np.int8)
    for number, share in ((2, test), (1, valid)):
        if share > 0 and not (chosen == number).any():
            spare = np.unique(place_E[chosen == 0])
            if len(spare) > 1:
                chosen[place_E == spare[0]] = number
    return chosen

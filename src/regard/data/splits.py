"""Training, validation and test splits by content, not by position.

The part of a pair follows from a hash of its key (the source sentence; the number; the date). So pairs of one key are never on
both sides of a split, and pairs added later leave the others where they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal

from ..errors import NotSupported

Pair = tuple[str, str]
Row = tuple[str, str, str]  # key, source, target
Part = Literal["train", "valid", "test"]
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


def split(rows: Iterable[Row], shares: tuple[float, float] = SHARES) -> dict[Part, list[Pair]]:
    """The pairs of each part, in the order given.

    If few pairs leave a requested part empty, it gets the next training key in the order of hashes, as long as there are
    keys to spare.
    """
    rows, part = list(rows), part_of(shares)
    parts = {key: part(key) for key, _, _ in rows}
    for wanted, share in (("test", shares[1]), ("valid", shares[0])):
        spare = sorted((key for key, p in parts.items() if p == "train"), key=lambda key: (place(key), key))
        if share > 0 and wanted not in parts.values() and len(spare) > 1:
            parts[spare[0]] = wanted  # type: ignore[assignment]
    made: dict[Part, list[Pair]] = {"train": [], "valid": [], "test": []}
    for key, source, target in rows:
        made[parts[key]].append((source, target))
    return made

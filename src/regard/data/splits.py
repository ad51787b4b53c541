"""Training, validation and test splits by content, not by position.

The part of an example follows from a hash of its key (the source sentence; the number; the date). So examples of one key are never on
both sides of a split, and examples added later leave the others where they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, NotSupported
from .lines import Fault, Policy, Skipped

Pair = tuple[str, str]
Row = tuple[str, str, str]  # key, source, target
Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")
PART_NAMES = {"train": ("train", "training"), "valid": ("valid", "val", "validation"), "test": ("test", "t10k")}  # of folders and files
SHARES = (0.05, 0.05)
PartT = TypeVar("PartT", covariant=True)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Splits(Generic[PartT]):
    """Three parts of some data, what was skipped while reading it, and a fingerprint of all of it.

    Args:
        train: training part.
        valid: validation part.
        test: test part.
        skipped: malformed examples that were skipped.
        digest: hash of all parts.
        note: guess that was made while reading, which a user should see.
    """

    train: PartT
    valid: PartT
    test: PartT
    skipped: Skipped | str = field(default_factory=lambda: Skipped(unit="line"))
    digest: str = ""
    note: str = ""

    @property
    def parts(self) -> tuple[PartT, PartT, PartT]:
        return self.train, self.valid, self.test


def digest(contents: Iterable[str | bytes]) -> str:
    """A fingerprint of some lines, or of bytes."""
    whole = hashlib.blake2b(digest_size=8)
    for one in contents:
        whole.update(one if isinstance(one, bytes) else f"{one}\n".encode())
    return whole.hexdigest()


def content_of(example: object) -> str:
    """The content of an example of plain values."""
    return repr(tuple(example)) if isinstance(example, tuple) else repr(example)


def read_splits(
    read: Callable[[str], Iterable[Found | Fault]],
    data: str | Path | None,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    on_error: Policy = "stop",
    shares: tuple[float, float] = SHARES,
    key: Callable[[Found], str] = content_of,
    unit: str = "line",
    content: Callable[[Found], str | bytes] = content_of,
) -> Splits[list[Found]]:
    """Examples that `read` finds in each source; a part without a source is held out of `data`.

    Args:
        read: Gives the examples of one source, and a `Fault` for each that cannot be used.
        data: Source of the training part.
        valid: Source of the validation part.
        test: Source of the test part.
        on_error: Stop at the first fault, or skip and count them.
        shares: Fractions of `data` to hold out for validation and test.
        key: Decides the part of an example: equal keys are never on both sides.
        unit: Name of what is read, for messages.
        content: Content of an example, for the fingerprint.
    """
    skipped = Skipped(unit=unit, on_error=on_error)

    def found(source: str | Path) -> list[Found]:
        kept = list(skipped.sound(read(str(source))))
        if not kept:
            raise BadFile(f"{source}: no example in it{f'; {skipped}' if len(skipped) else ''}")
        return kept

    train, held_valid, held_test = hold_out(found(str(data)), key, (0.0 if valid else shares[0], 0.0 if test else shares[1]))
    parts = train, found(valid) if valid else held_valid, found(test) if test else held_test
    return Splits(*parts, skipped, digest(content(one) for part in parts for one in part))


def hold_out(examples: Sequence[Found], key: Callable[[Found], str], shares: tuple[float, float]) -> tuple[list[Found], ...]:
    """Training, validation and test part of some examples, by their keys.

    Args:
        examples: All of them.
        key: Decides the part of an example.
        shares: Fractions for validation and test.
    """
    chosen = choose_parts(np.array([place(key(one)) for one in examples]), shares)
    return tuple([examples[n] for n in np.flatnonzero(chosen == number).tolist()] for number in range(len(PARTS)))


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


def choose_amounts(
    place_E: npt.NDArray[np.float64], amount_E: npt.NDArray[np.int64], shares: tuple[float, float] = SHARES
) -> npt.NDArray[np.int8]:
    """The number in `PARTS` of each example, where the shares are of an amount, such as characters: documents differ in length by factors of 100.

    A part takes examples in the order of their places, first those of at most a quarter of its share, so that it has several, until the next
    would exceed it; while it has less than half, an example that is too long is passed over. An example that is added later moves few others.
    """
    part_of(shares)  # checks them
    valid, test = shares
    places, group_E = np.unique(place_E, return_inverse=True)  # copies go together
    amount_G = np.bincount(group_E, weights=amount_E)
    part_G = np.zeros(len(places), dtype=np.int8)
    for number, share in ((2, test), (1, valid)):
        wanted, taken = share * amount_G.sum(), 0.0
        free = np.flatnonzero(part_G == 0)
        for group in free[np.argsort(amount_G[free] > wanted / 4, kind="stable")]:
            if taken + amount_G[group] <= wanted:
                part_G[group], taken = number, taken + amount_G[group]
            elif taken >= wanted / 2:
                break
        spare = np.flatnonzero(part_G == 0)
        if share > 0 and not (part_G == number).any() and len(spare) > 1:
            part_G[spare[amount_G[spare].argmin()]] = number
    return part_G[group_E]

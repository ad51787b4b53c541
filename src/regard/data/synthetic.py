"""Random digits to copy or to reverse: the smallest task that shows what a translator attends to.

    copy:10-16                  3 1 4 1 5 … → 3 1 4 1 5 …, ten to sixteen digits
    reverse:10-16,count=5000    3 1 4 → 4 1 3

Copying runs along the diagonal, reversing across it: attention that assumes the order of the source can do the first only.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ..errors import NotSupported
from ._options import between, options
from .splits import Row


def rows(text: str, part: Callable[[str], str], step: int = 1) -> list[Row]:
    """The pairs of a source like `10-16,count=5000`; step −1 reverses."""
    head, chosen = options(text, {"count": 10_000, "seed": 0})
    first, _, last = head.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or not 1 <= int(first) <= int(last or first):
        raise NotSupported(f"{head!r}: give the shortest and the longest length, as in reverse:10-16")
    generator, lengths = random.Random(chosen["seed"]), range(int(first), int(last or first) + 1)
    made = []
    for _ in range(between("count", chosen["count"], 1, 10_000_000)):
        digits = [str(generator.randrange(10)) for _ in range(lengths[generator.randrange(len(lengths))])]
        made.append((" ".join(digits), " ".join(digits), " ".join(digits[::step])))
    return made

"""Guessing what comes next by looking it up: where the last few tokens stood before, in the prompt or the answer, what followed them?

A model that reads several tokens at once costs little more than one that reads one: most of the time goes into fetching its weights. So
the guess is read together with the last token, and as much of it is kept as the model would have chosen anyway. The answer is the same,
drawn ones too; only what repeats itself comes faster.

Paper: Saxena 2023, "Prompt lookup decoding"; Leviathan et al. 2022 (checking guesses in one pass), arXiv:2211.17192.
"""

from __future__ import annotations

from collections.abc import Iterable

SIZES = (4, 3, 2)  # tokens that must have stood before: the longest match counts


class Lookup:
    """All tokens so far, and where each run of a few of them stood last."""

    def __init__(self, ids: Iterable[int]):
        self.ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # a run → the place behind it, when it was last followed by something
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        for size in SIZES:
            if len(self.ids) >= size:
                self._after[tuple(self.ids[-size:])] = len(self.ids)
        self.ids.append(token)

    def guess(self, most: int) -> list[int]:
        """What followed last time, so many tokens; nothing if the end is new. What repeats itself is taken to go on doing so."""
        for size in SIZES:
            place = self._after.get(tuple(self.ids[-size:]))
            if place is not None and most > 0:
                period = self.ids[place:]
                return [period[n % len(period)] for n in range(most)]
        return []

"""Prompt-lookup decoding: propose the tokens that followed the last few tokens when they occurred before, in the prompt or the completion.

A forward pass over several tokens costs little more than over one, because most of its time goes into reading the parameters. So the
proposal is read together with the last token, and as much of it is kept as the model would have chosen anyway. The completion is the same,
sampled or greedy; text that repeats itself takes fewer steps.

Paper: Saxena 2023, "Prompt lookup decoding"; Leviathan et al. 2022 (verifying several tokens in one pass), arXiv:2211.17192.
"""

from __future__ import annotations

from collections.abc import Iterable

SIZES = (4, 3, 2)  # tokens of an n-gram that must have occurred before; the longest match counts


class PromptLookup:
    """All tokens so far, with an index of where each n-gram occurred last."""

    def __init__(self, ids: Iterable[int]):
        self.ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram → the position after its last occurrence that was followed by a token
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        for size in SIZES:
            if len(self.ids) >= size:
                self._after[tuple(self.ids[-size:])] = len(self.ids)
        self.ids.append(token)

    def propose(self, count: int) -> list[int]:
        """The `count` tokens that followed the last n-gram before, repeated periodically if there are fewer; none if it is new."""
        for size in SIZES:
            start = self._after.get(tuple(self.ids[-size:]))
            if start is not None and count > 0:
                period = self.ids[start:]
                return [period[n % len(period)] for n in range(count)]
        return []

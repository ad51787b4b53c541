"""Streaming text: tokens to text without broken characters, and stop strings across token boundaries.

Stop strings are searched for in the text, because their token ids depend on their neighbours. The one completed first counts; of two
that are completed by the same character, the longer. Text is cut off before it. While text streams, a tail that may still become a
stop string is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what tokenizers decode an incomplete character to
MISSING = 3  # at most this many replacement characters stand for one character that may still be completed
PENDING = 32  # tokens to wait for: bytes that are not text must not be decoded again with every token that follows


def find_stop(text: str, strings: Sequence[str]) -> tuple[int, str] | None:
    """The position of the stop string that is completed first, and which it is."""
    found = [(start + len(stop), start, stop) for stop in strings if (start := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


class StopFilter:
    """Text that arrives and leaves in pieces, up to a stop string."""

    def __init__(self, strings: Sequence[str]):
        self.strings = strings
        self.text = ""  # all that has left so far
        self.stop: str | None = None  # the stop string that ended it
        self._held = ""
        self._longest = max(map(len, strings), default=1) - 1

    def push(self, piece: str) -> str:
        """Take in the next piece and return what can be shown now: nothing after a stop string."""
        if self.stop is not None:
            return ""
        self._held += piece
        found = find_stop(self._held, self.strings)
        if found is None:
            cut = len(self._held) - self._partial(self._held)
        else:
            cut, self.stop = found
        shown, self._held = self._held[:cut], self._held[cut:]
        self.text += shown
        return shown

    def close(self) -> str:
        """No more text will come: what was held back is shown, unless it belongs to a stop string."""
        shown, self._held = ("" if self.stop is not None else self._held), ""
        self.text += shown
        return shown

    def _partial(self, text: str) -> int:
        """The number of characters at the end of the text that may be the beginning of a stop string."""
        sizes = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in sizes if any(s.startswith(text[-n:]) for s in self.strings if len(s) > n)), 0)


class Detokenizer:
    """The text that each new token adds after the tokens of `before`. A character spread over several tokens comes when it is complete."""

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()):
        self._decode = decode
        self._ids = list(before)
        # Tokenizers treat the first token of a text differently (its space, for one), so new tokens are decoded after some shown ones.
        self._from, self._shown = 0, len(self._ids)
        self._known = len(decode(self._ids))  # characters after `_from` that were shown

    def push(self, token: int) -> str:
        self._ids.append(token)
        return self._new_text(complete_only=True)

    def close(self) -> str:
        """What remains of an incomplete last character."""
        return self._new_text(complete_only=False)

    def _new_text(self, complete_only: bool) -> str:
        text = self._decode(self._ids[self._from :])
        held = min(len(text) - len(text.rstrip(BROKEN)), MISSING) if complete_only else 0
        if (held or len(text) <= self._known) and len(self._ids) - self._shown < PENDING:
            return ""
        new = text[self._known : len(text) - held]
        self._from, self._shown = self._shown, len(self._ids)
        self._known = len(self._decode(self._ids[self._from :])) - held
        return new

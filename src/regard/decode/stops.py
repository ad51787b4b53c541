"""Stop strings: an answer ends where a given text appears, even if it begins in one token and ends in another.

They are looked for in TEXT, as a token's id differs with its neighbours. The first stop string to be complete counts; if two are
complete with the same character, the longer. The answer is cut before it. While text streams out, a tail that may still
become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import NotSupported

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what decoders write for a character of which some bytes are still to come
MISSING = 3  # of them at most stand for a character that may become whole
PENDING = 32  # tokens that are waited for: bytes that are no text must not be decoded again with every one that follows


@dataclass(frozen=True)
class Stops:
    """The strings that end an answer. None at all is allowed; an empty one is not: it would be everywhere."""

    strings: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.strings, str):
            raise NotSupported(f"Stops({self.strings!r}): expected several strings; write Stops(({self.strings!r},))")
        if "" in self.strings:
            raise NotSupported(f"Stops({self.strings!r}): an empty stop string would end every answer at once; leave it out")

    def find(self, text: str) -> tuple[int, str] | None:
        """Where the first complete stop string begins, and which it is."""
        found = [(begin + len(stop), begin, stop) for stop in self.strings if (begin := text.find(stop)) >= 0]
        return min(found)[1:] if found else None

    def held(self, text: str) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        longest = max(map(len, self.strings), default=1) - 1
        return next(
            (n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in self.strings if len(s) > n)), 0
        )


class Stream:
    """Text that arrives in pieces and leaves in pieces, up to a stop string."""

    def __init__(self, stops: Stops):
        self.stops = stops
        self.text = ""  # all that was let out
        self.stop: str | None = None  # the stop string that ended it
        self._held = ""

    def push(self, piece: str) -> str:
        """Take in the next piece; return what may be shown now. After a stop string nothing more comes."""
        if self.stop is not None:
            return ""
        self._held += piece
        found = self.stops.find(self._held)
        if found is None:
            cut = len(self._held) - self.stops.held(self._held)
        else:
            cut, self.stop = found
        shown, self._held = self._held[:cut], self._held[cut:]
        self.text += shown
        return shown

    def close(self) -> str:
        """The answer has ended: what was held back is text after all, unless it was a stop string."""
        shown, self._held = ("" if self.stop is not None else self._held), ""
        self.text += shown
        return shown


class Pieces:
    """The text each new token adds, behind those of `before`. A character whose bytes are spread over tokens comes when it is whole."""

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()):
        self._decode = decode
        self._ids = list(before)
        # Decoders treat the first token of a text apart (its space, for one), so new tokens are read behind some that were shown.
        self._from, self._shown = 0, len(self._ids)
        self._told = len(decode(self._ids))  # characters behind `_from` that were shown

    def push(self, token: int) -> str:
        self._ids.append(token)
        return self._new(whole_only=True)

    def close(self) -> str:
        """What a last, broken character leaves."""
        return self._new(whole_only=False)

    def _new(self, whole_only: bool) -> str:
        text = self._decode(self._ids[self._from :])
        held = min(len(text) - len(text.rstrip(BROKEN)), MISSING) if whole_only else 0
        if (held or len(text) <= self._told) and len(self._ids) - self._shown < PENDING:
            return ""
        new = text[self._told : len(text) - held]
        self._from, self._shown = self._shown, len(self._ids)
        self._told = len(self._decode(self._ids[self._from :])) - held
        return new


class Watcher:
    """Stop strings over the rows of a batch, each row by itself: give it to `sample` as `watch`, then ask `texts()`.

    `show(row, piece)` is called with every piece of text as soon as it cannot be part of a stop string any more.
    """

    def __init__(self, stops: Stops, decode: Callable[[list[int]], str], rows: int, show: Callable[[int, str], None] | None = None):
        self.streams = [Stream(stops) for _ in range(rows)]
        self._pieces = [Pieces(decode) for _ in range(rows)]
        self._show = show or (lambda row, piece: None)

    def __call__(self, rows: list[int], tokens: list[int]) -> list[bool]:
        for row, token in zip(rows, tokens, strict=True):
            self._out(row, self.streams[row].push(self._pieces[row].push(token)))
        return [self.streams[row].stop is not None for row in rows]

    def texts(self) -> list[str]:
        """The texts of all rows, now that they have ended, cut before their stop strings."""
        for row, stream in enumerate(self.streams):
            self._out(row, stream.push(self._pieces[row].close()) + stream.close())
        return [stream.text for stream in self.streams]

    def _out(self, row: int, piece: str) -> None:
        if piece:
            self._show(row, piece)

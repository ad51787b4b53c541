"""What is asked of a completion, and what comes back: text in pieces, tokens with their log-probabilities, and why it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..errors import NotSupported
from .sample import Sampling, Uniforms
from .stops import BROKEN, Pieces, Stops, Stream

Decode = Callable[[list[int]], str]
Finish = Literal["stop", "length"]
BEHIND = 8  # tokens of the prompt that the first new ones are read behind


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt and how to go on with it. Which ids a model knows and how long a text it takes, the engine checks."""

    prompt: Sequence[int]
    most: int = 16  # tokens at most, the end token counted; 0 only reads the prompt
    sampling: Sampling = field(default_factory=Sampling)  # its own `most` is not asked
    stops: Stops = field(default_factory=Stops)
    bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits of tokens
    presence: float = 0.0  # taken from the logit of each token that was said already
    frequency: float = 0.0  # taken from it as often as it was said
    alternatives: int | None = None  # of the likeliest tokens, beside the one taken; None: no log-probabilities are kept
    echo: bool = False  # the prompt is part of the answer, with its log-probabilities
    hidden: int = 0  # tokens at the beginning of the prompt that an echo leaves out

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise NotSupported("an empty prompt; a model goes on from at least one token, if only the one that begins a text")
        if self.most < 0:
            raise NotSupported(f"Request(most={self.most}): expected at least 0")
        if self.alternatives is not None and self.alternatives < 0:
            raise NotSupported(f"Request(alternatives={self.alternatives}): expected at least 0, or None for no log-probabilities")


class Said(NamedTuple):
    """A token of an answer, with its log-probability under the model itself, before any of the options."""

    id: int
    log_prob: float | None  # None for the first token of an echoed prompt, which follows nothing
    likeliest: tuple[tuple[int, float], ...]  # the best alternatives, best first; the token itself only if it is one of them
    offset: int  # the character of the answer it begins at


class Piece(NamedTuple):
    """What an answer has grown by. Tokens come with the text they begin in, and only if they were asked for."""

    row: Row
    text: str
    said: list[Said]
    finish: Finish | None


class Row:
    """One answer in the making. Its random numbers, its text and its end are its own, so neighbours cannot change it."""

    def __init__(self, request: Request, number: int, decode: Decode, ends: frozenset[int]):
        self.request, self.number = request, number
        self.ids: list[int] = []
        self.log_prob = 0.0  # of all tokens taken
        self.finish: Finish | None = None
        self.gone = False  # nobody wants it any more
        self.change = dict(request.bias)  # what is added to logits now: biases, less penalties
        self._ends, self._stream = ends, Stream(request.stops)
        self._pieces = _behind(decode, [] if request.echo else list(request.prompt[-BEHIND:]))
        self._uniforms: Uniforms | None = None
        self._waiting: list[Said] = []  # tokens whose text is held back
        self._characters = 0  # of all pieces so far, those held back counted
        self._echoed = ""

    @property
    def text(self) -> str:
        """All that was let out so far."""
        return self._echoed + self._stream.text

    @property
    def last(self) -> int:
        return self.ids[-1] if self.ids else self.request.prompt[-1]

    def uniform(self) -> float:
        """The next of its random numbers."""
        self._uniforms = self._uniforms or Uniforms(self.request.sampling.seed, [self.number])
        return float(self._uniforms.next([0]))

    def read(self, scores: Sequence[tuple[float, tuple[tuple[int, float], ...]]]) -> Piece:
        """The prompt was read; of an echoed one these are the scores of all tokens but the first, if they were asked for."""
        request = self.request
        if request.echo:
            given: list[tuple[float | None, tuple[tuple[int, float], ...]]] = [(None, ()), *scores]
            for at, token in enumerate(request.prompt):
                if at < request.hidden:
                    continue
                if request.alternatives is not None:
                    self._waiting.append(Said(token, *given[at], self._characters))
                self._echoed += self._pieces.push(token)
                self._characters = len(self._echoed)
            if not request.most:
                self._echoed += self._pieces.close()
        self.finish = None if request.most else "length"
        return self._piece(self._echoed)

    def take(self, token: int, log_prob: float, likeliest: tuple[tuple[int, float], ...]) -> Piece:
        """The next token was chosen."""
        request = self.request
        self.ids.append(token)
        self.log_prob += log_prob
        if request.presence or request.frequency:
            first = self.ids.index(token) == len(self.ids) - 1
            self.change[token] = self.change.get(token, 0.0) - request.frequency - request.presence * first
        if request.alternatives is not None:
            self._waiting.append(Said(token, log_prob, likeliest[: request.alternatives], self._characters))
        ended, last = token in self._ends, len(self.ids) >= request.most
        shown = "" if ended else self._push(self._pieces.push(token))
        if ended or last:
            shown += self._push(self._pieces.close())  # half a character, which may complete a stop string
            shown += self._stream.close()
        if ended or self._stream.stop is not None:
            self.finish = "stop"
        elif last:
            self.finish = "length"
        return self._piece(shown)

    def _push(self, piece: str) -> str:
        self._characters += len(piece)
        return self._stream.push(piece)

    def _piece(self, shown: str) -> Piece:
        cut = len(self.text)
        if self.finish and self._stream.stop is None:
            cut += 1  # nothing is cut off: tokens without text, as the end, come too
        ready = [said for said in self._waiting if said.offset < cut]
        self._waiting = [said for said in self._waiting if said.offset >= cut]
        return Piece(self, shown, ready, self.finish)


def _behind(decode: Decode, ids: list[int]) -> Pieces:
    """Pieces of text that follow these tokens. A character that the prompt only begins is part of what follows."""
    whole = len(ids)
    while whole and decode(ids[:whole]).endswith(BROKEN):
        whole -= 1
    pieces = Pieces(decode, ids[:whole])
    for token in ids[whole:]:
        pieces.push(token)
    return pieces

"""A request to the engine and the completions it grows into: tokens, text, log-probabilities, and why each ended.

Stop strings are searched for in the text, because their token ids depend on their neighbours. The one completed first counts; of two
that are completed by the same character, the longer. Text is cut off before it. While text streams, a tail that may still become a
stop string is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..errors import NotSupported
from .guided import Guide
from .options import GenerationOptions, GuidedOptions
from .sampling import DEFAULT_MAX_TOKENS, Uniforms, new_seed, row_number

Decode = Callable[[list[int]], str]
FinishReason = Literal["stop", "length", "error"]  # error: the grammar wants what the vocabulary lacks
Scores = tuple[float | None, tuple[tuple[int, float], ...]]  # log-probability of a token, and the most likely tokens with theirs
BROKEN = "\N{REPLACEMENT CHARACTER}"  # what tokenizers decode an incomplete character to
MISSING = 3  # at most this many replacement characters stand for one character that may still be completed
PENDING = 32  # tokens to wait for: bytes that are not text must not be decoded again with every token that follows
CONTEXT = 8  # prompt tokens after which the first new ones are decoded to text


@dataclass(eq=False, kw_only=True)
class Request:
    """A prompt with its options, and after `Engine.submit` the completions that continue it. A request is submitted once."""

    prompt: Sequence[int]  # token ids
    options: GenerationOptions = field(default_factory=GenerationOptions)  # sampling, number of completions, limits
    hidden: int = 0  # tokens at the beginning of the prompt that an echo leaves out
    index: int = 0  # index of the prompt, among those submitted together
    guide: Guide | None = None  # beginning of the options' grammar, which each completion follows
    completions: list[Completion] = field(default_factory=list, init=False)  # completions in progress, after `Engine.submit`
    seed: int = field(default=0, init=False)  # seed of its random numbers: the options', or a new one
    prompt_scores: list[Scores] = field(default_factory=list, init=False)  # scores of an echoed prompt's tokens from the second on

    def __post_init__(self) -> None:
        if isinstance(self.options, GuidedOptions) and self.guide is None:
            raise NotSupported("a grammar needs the model's tokenizer, and there is none; pass it, or leave the grammar out")
        if not len(self.prompt):
            raise NotSupported("the prompt is empty; a model needs at least one token to continue, such as the one that begins a text")
        self.seed = new_seed() if self.options.seed is None else self.options.seed

    @property
    def max_tokens(self) -> int:
        """The maximum number of new tokens per completion."""
        return DEFAULT_MAX_TOKENS if self.options.max_tokens is None else self.options.max_tokens

    @property
    def cancelled(self) -> bool:
        return all(completion.cancelled for completion in self.completions)


class TokenLogprob(NamedTuple):
    """A token with its log-probability under the model itself, before penalties, temperature and filters."""

    id: int  # token id
    log_prob: float | None  # None for the first token of an echoed prompt, which has no context
    top: tuple[tuple[int, float], ...]  # the most likely alternatives, best first; the token itself only if it is one of them
    offset: int  # position of its first character in the text


class Chunk(NamedTuple):
    """Increment of a completion. Tokens come with the text they begin in, and only if log-probabilities were requested."""

    completion: Completion  # completion that has grown
    text: str  # new text
    logprobs: list[TokenLogprob]  # new tokens with their log-probabilities, if requested
    finish_reason: FinishReason | None  # "stop", "length" or "error" in the last chunk; None before


class Completion:
    """One completion of a request, in progress or finished. It has its own random numbers, text and end, whatever else is in the batch.

    Args:
        request: request that it continues.
        index: index among the completions of the request.
        decode: token ids → text.
        eos_ids: tokens that end it.
    """

    def __init__(self, request: Request, index: int, decode: Decode, eos_ids: frozenset[int]):
        self.request, self.index = request, index
        self.max_tokens = request.max_tokens
        self.ids: list[int] = []  # all tokens generated, including the end token and those of a stop string
        self.log_prob = 0.0  # of the ids
        self.logprobs: list[TokenLogprob] = []  # of the tokens of the text, if requested
        self.finish_reason: FinishReason | None = None
        self.cancelled = False
        self.logit_changes = dict(request.options.logit_bias)  # biases less penalties, by token id
        self.seen = dict.fromkeys(request.prompt) if request.options.repetition_penalty != 1 else {}  # tokens to penalize, in order
        self.guide = None if request.guide is None else request.guide.copy()
        self._eos_ids = eos_ids
        self._filter = StopFilter(request.options.stop)
        self._detokenizer = _detokenizer_after(decode, [] if request.options.echo else list(request.prompt[-CONTEXT:]))
        self._uniforms: Uniforms | None = None
        self._pending: list[TokenLogprob] = []  # tokens whose text is held back
        self._characters = 0  # of all text so far, including what is held back
        self._echo = ""

    def __repr__(self) -> str:
        return f"Completion(text={self.text!r}, finish_reason={self.finish_reason!r}, log_prob={self.log_prob:.4f})"

    @property
    def text(self) -> str:
        """The text so far."""
        return self._echo + self._filter.text

    @property
    def last_token(self) -> int:
        return self.ids[-1] if self.ids else self.request.prompt[-1]

    @property
    def length(self) -> int:
        """Tokens of the prompt and the completion so far."""
        return len(self.request.prompt) + len(self.ids)

    def tokens_from(self, start: int) -> list[int]:
        """Prompt and completion so far, from a position on."""
        prompt = self.request.prompt
        return [*prompt[start:], *self.ids[max(0, start - len(prompt)) :]]

    def next_uniform(self) -> float:
        """The next of its random numbers."""
        self._uniforms = self._uniforms or Uniforms(self.request.seed, [row_number(self.request.prompt, self.index)])
        return float(self._uniforms.next([0]))

    def start(self) -> Chunk:
        """The prompt has been read: the first chunk is its text, if it is echoed."""
        request, options = self.request, self.request.options
        if options.echo:
            scores: list[Scores] = [(None, ()), *request.prompt_scores]
            for at, token in enumerate(request.prompt):
                if at < request.hidden:
                    continue
                if options.logprobs is not None:
                    self._pending.append(TokenLogprob(token, *scores[at], self._characters))
                self._echo += self._detokenizer.push(token)
                self._characters = len(self._echo)
            if not self.max_tokens:
                self._echo += self._detokenizer.close()
        self.finish_reason = None if self.max_tokens else "length"
        return self._chunk(self._echo)

    def add(self, token: int, log_prob: float, top: tuple[tuple[int, float], ...]) -> Chunk:
        """The next token was chosen.

        Args:
            token: id of the token.
            log_prob: its log-probability.
            top: the likeliest tokens with their log-probabilities.
        """
        options = self.request.options
        if self.guide is not None:
            self.guide.add(token)
            if self.guide.stuck:
                shown = self._push(self._detokenizer.close()) + self._filter.close()
                self.finish_reason = "error"
                return self._chunk(shown)
        self.ids.append(token)
        self.log_prob += log_prob
        if options.repetition_penalty != 1:
            self.seen[token] = None
        if options.presence_penalty or options.frequency_penalty:
            first = self.ids.index(token) == len(self.ids) - 1
            change = self.logit_changes.get(token, 0.0)
            self.logit_changes[token] = change - options.frequency_penalty - options.presence_penalty * first
        if options.logprobs is not None:
            self._pending.append(TokenLogprob(token, log_prob, top[: options.logprobs], self._characters))
        ended, full = token in self._eos_ids, len(self.ids) >= self.max_tokens
        shown = "" if ended else self._push(self._detokenizer.push(token))
        ended = ended or (self.guide is not None and self.guide.complete)
        if ended or full:
            shown += self._push(self._detokenizer.close())  # an incomplete character, which may complete a stop string
            shown += self._filter.close()
        if ended or self._filter.stop is not None:
            self.finish_reason = "stop"
        elif full:
            self.finish_reason = "length"
        return self._chunk(shown)

    def _push(self, text: str) -> str:
        self._characters += len(text)
        return self._filter.push(text)

    def _chunk(self, shown: str) -> Chunk:
        ready: list[TokenLogprob] = []
        if self._pending:
            end = len(self.text)
            if self.finish_reason and self._filter.stop is None:
                end += 1  # nothing is cut off: tokens without text, such as the end token, come too
            ready = [token for token in self._pending if token.offset < end]
            self._pending = [token for token in self._pending if token.offset >= end]
            self.logprobs += ready
        return Chunk(self, shown, ready, self.finish_reason)


def _detokenizer_after(decode: Decode, ids: list[int]) -> Detokenizer:
    """A detokenizer for what follows these tokens. A character that the prompt only begins is part of what follows."""
    whole = len(ids)
    while whole and decode(ids[:whole]).endswith(BROKEN):
        whole -= 1
    detokenizer = Detokenizer(decode, ids[:whole])
    for token in ids[whole:]:
        detokenizer.push(token)
    return detokenizer


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
        """Return what remains of an incomplete last character."""
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

"""A request to the engine and the completions it grows into: tokens, text, log-probabilities, and why each ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..errors import NotSupported
from .sampling import DEFAULT_MAX_TOKENS, GenerationOptions, Uniforms
from .stops import BROKEN, Detokenizer, StopFilter

Decode = Callable[[list[int]], str]
FinishReason = Literal["stop", "length"]
Scores = tuple[float | None, tuple[tuple[int, float], ...]]  # log-probability of a token, and the most likely tokens with theirs
CONTEXT = 8  # prompt tokens after which the first new ones are decoded to text


@dataclass(eq=False, kw_only=True)
class Request:
    """A prompt with its options, and after `Engine.submit` the completions that continue it. A request is submitted once."""

    prompt: Sequence[int]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    hidden: int = 0  # tokens at the beginning of the prompt that an echo leaves out
    index: int = 0  # of the prompt, among those submitted together
    completions: list[Completion] = field(default_factory=list, init=False)
    prompt_scores: list[Scores] = field(default_factory=list, init=False)  # of an echoed prompt's tokens from the second on

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise NotSupported("an empty prompt; a model continues at least one token, if only the one that begins a text")

    def max_tokens(self, available: int) -> int:
        """The maximum number of new tokens per completion, if prompt and completion may have `available` tokens."""
        if self.options.max_tokens is not None:
            return self.options.max_tokens
        return max(1, min(DEFAULT_MAX_TOKENS, available - len(self.prompt)))

    @property
    def cancelled(self) -> bool:
        return all(completion.cancelled for completion in self.completions)


class TokenLogprob(NamedTuple):
    """A token with its log-probability under the model itself, before penalties, temperature and filters."""

    id: int
    log_prob: float | None  # None for the first token of an echoed prompt, which has no context
    top: tuple[tuple[int, float], ...]  # the most likely alternatives, best first; the token itself only if it is one of them
    offset: int  # of its first character in the text


class Chunk(NamedTuple):
    """What a completion has grown by. Tokens come with the text they begin in, and only if log-probabilities were requested."""

    completion: Completion
    text: str
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None


class Completion:
    """One completion of a request, in progress or finished. It has its own random numbers, text and end, whatever else is in the batch."""

    def __init__(self, request: Request, index: int, max_tokens: int, decode: Decode, eos_ids: frozenset[int]):
        self.request, self.index = request, index
        self.max_tokens = max_tokens
        self.ids: list[int] = []  # all tokens generated, including the end token and those of a stop string
        self.log_prob = 0.0  # of the ids
        self.logprobs: list[TokenLogprob] = []  # of the tokens of the text, if requested
        self.finish_reason: FinishReason | None = None
        self.cancelled = False
        self.logit_changes = dict(request.options.logit_bias)  # biases less penalties, by token id
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
    def tokens_held(self) -> int:
        """The largest number of tokens its cache may have to hold."""
        return len(self.request.prompt) + self.max_tokens

    def next_uniform(self) -> float:
        """The next of its random numbers."""
        self._uniforms = self._uniforms or Uniforms(self.request.options.seed, [self.index])
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
        """The next token was chosen."""
        options = self.request.options
        self.ids.append(token)
        self.log_prob += log_prob
        if options.presence_penalty or options.frequency_penalty:
            first = self.ids.index(token) == len(self.ids) - 1
            change = self.logit_changes.get(token, 0.0)
            self.logit_changes[token] = change - options.frequency_penalty - options.presence_penalty * first
        if options.logprobs is not None:
            self._pending.append(TokenLogprob(token, log_prob, top[: options.logprobs], self._characters))
        ended, full = token in self._eos_ids, len(self.ids) >= self.max_tokens
        shown = "" if ended else self._push(self._detokenizer.push(token))
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

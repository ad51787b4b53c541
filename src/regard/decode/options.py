"""Options of decoding: sampling, completions, the engine. Nothing here imports PyTorch: help pages read this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ..errors import NotSupported
from .guided import Grammar

ParameterDtype = Literal["float32", "float32_packed", "float16x2", "float16", "bfloat16", "int8"]


@dataclass(frozen=True, kw_only=True)
class RelativeLength:
    """A maximum length relative to the source: |Y| ≤ factor · |X| + offset. Vaswani et al. 2017 use 1 · |X| + 50.

    Args:
        factor: tokens per source token.
        offset: tokens in addition.
    """

    factor: float = 1.0
    offset: int = 50

    def __post_init__(self) -> None:
        if self.factor < 0 or self.offset < 0 or self.factor + self.offset <= 0:
            raise NotSupported(f"{self}: expected a factor and an offset of at least 0 that allow for one token")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling options. The defaults draw from the model's own distribution; temperature 0 is greedy decoding.

    At `max_tokens` a sample is cut off, whereas beam search closes a hypothesis with the end token.
    """

    temperature: float = 1.0
    """Sampling temperature; 0 always takes the most likely token."""
    top_k: int = 0
    """Sample from the k most likely tokens, and those tied with the k-th; 0 keeps all."""
    top_p: float = 1.0
    """Sample from the smallest set of most likely tokens whose probabilities add up to p; 1 keeps all."""
    min_p: float = 0.0
    """Sample from tokens at least this fraction as likely as the most likely one; 0 keeps all."""
    seed: int | None = 0
    """Seed for sampling; the same seed gives the same text."""
    max_tokens: int | RelativeLength | None = None
    """Maximum number of new tokens, the end token included; by default the source length + 50."""
    least_tokens: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise self._bad("temperature", "a number of at least 0")
        if self.top_k < 0:
            raise self._bad("top_k", "at least 1, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise self._bad("top_p", "more than 0 and at most 1, which keeps all tokens")
        if not 0 <= self.min_p <= 1:
            raise self._bad("min_p", "0, which keeps all tokens, to 1")
        if isinstance(self.max_tokens, int) and self.max_tokens < self.least_tokens:
            raise self._bad("max_tokens", f"at least {self.least_tokens}")

    def _bad(self, name: str, expected: str) -> NotSupported:
        return NotSupported(f"{type(self).__name__}({name}={getattr(self, name)!r}): expected {expected}")


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(Sampling):
    """Generation options of a language model. The defaults draw one completion per prompt from the model's own distribution."""

    seed: int | None = None
    """Sampling seed: the same seed and prompt give the same completions; by default a new seed per prompt."""
    max_tokens: int | None = None
    """Maximum number of new tokens per completion; by default 100. Beyond the context length the oldest tokens are dropped."""
    n: int = 1
    """Number of completions per prompt."""
    best_of: int | None = None
    """Generate this many completions and return the n with the highest log-probability per token; by default n."""
    stop: tuple[str, ...] = ()
    """Stop strings: a completion ends before the first of them."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token generated before."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each time it was generated."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens in the prompt or generated before, and multiplies negative ones; 1 turns it off."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of tokens, by token id."""
    logprobs: int | None = None
    """Return log-probabilities, and those of this many most likely alternatives per token; by default none."""
    echo: bool = False
    """Return the prompt as part of the completion."""
    least_tokens: ClassVar[int] = 0  # only the prompt is read, for its log-probabilities

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 1 or (self.best_of is not None and self.best_of < self.n):
            raise NotSupported(f"GenerationOptions(n={self.n}, best_of={self.best_of}): expected 1 ≤ n ≤ best_of")
        if isinstance(self.stop, str):  # type: ignore[unreachable]
            raise self._bad("stop", f"a tuple of strings; write stop=({self.stop!r},)")
        if "" in self.stop:
            raise self._bad("stop", "no empty stop string, which would end every completion at once")
        if not 0.01 <= self.repetition_penalty <= 100:  # beyond, logits could overflow
            raise self._bad("repetition_penalty", "0.01 to 100; 1 turns it off")
        if self.logprobs is not None and self.logprobs < 0:
            raise self._bad("logprobs", "at least 0, or None for no log-probabilities")

    @property
    def num_completions(self) -> int:
        """Completions generated per prompt."""
        return self.best_of or self.n


@dataclass(frozen=True, kw_only=True)
class GuidedOptions(GenerationOptions):
    """Generation options of completions that follow a grammar."""

    grammar: Grammar
    """Grammar that each completion follows: a JSON schema, a regular expression, one of several texts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop:
            raise self._bad("stop", "no stop strings together with a grammar, which says where a completion ends")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Limits of the engine, and how it decodes. None of them changes a completion."""

    max_batch: int = 16
    """Maximum number of completions generated at once, including those whose prompts are being read."""
    max_context_tokens: int = 16_384
    """Maximum number of tokens held in caches: completions times the longest of them, prompt included."""
    max_queue: int = 64
    """Maximum number of prompts waiting for a free slot; further ones are refused."""
    prefill_chunk: int = 128
    """Maximum number of prompt tokens read per step."""
    prompt_lookup: int = 0
    """Tokens proposed per step by prompt-lookup decoding, while a single completion is running; 0 turns it off."""

    def __post_init__(self) -> None:
        if min(self.max_batch, self.max_context_tokens, self.max_queue, self.prefill_chunk) < 1 or self.prompt_lookup < 0:
            raise NotSupported(f"{self}: expected limits of at least 1, and prompt_lookup of at least 0")

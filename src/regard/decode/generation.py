"""Text generation: prompts in, completions out, many at once.

    completions = generate(model, tokenizer, ["Once upon a time"], GenerationOptions(max_tokens=50, temperature=0.8, seed=1))
    print(completions[0][0].text)

    for chunk in stream(model, tokenizer, "Once upon a time"):
        print(chunk.text, end="", flush=True)

With a seed, a completion depends on its prompt, the options and its index among the completions of that prompt; not on other prompts, nor on
batching. Without one, every prompt gets random numbers of its own, equal prompts too.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from ..data import Tokenizer
from ..errors import NotSupported
from ..models import LanguageModel, eval_mode
from .engine import Engine
from .guided import Grammar, GrammarCompiler, Guide
from .options import EngineOptions, GenerationOptions, GuidedOptions
from .requests import Chunk, Completion, Request

Prompt = str | Sequence[int]
UNKNOWN_SHOWN = 8  # unknown characters or words that a warning names


class IdEncoder:
    """Prompts that are token ids already, without a tokenizer: completions have ids and no text, and only `eos_ids` end them.

    Args:
        vocab_size: number of tokens of the model.
        eos_ids: tokens that end a completion.
    """

    def __init__(self, vocab_size: int, eos_ids: Collection[int] = ()):
        self.vocab_size, self.eos_ids = vocab_size, tuple(eos_ids)
        self.banned_ids: tuple[int, ...] = ()

    def encode(self, prompt: Prompt) -> tuple[list[int], int]:
        """The token ids of a prompt, and how many of them at the beginning are not part of its text."""
        if isinstance(prompt, str):
            raise NotSupported("the prompt is a text, and there is no tokenizer; pass token ids, or the model's tokenizer")
        if any(not 0 <= token < self.vocab_size for token in prompt):
            raise NotSupported(f"the prompt has ids from {min(prompt)} to {max(prompt)}; the vocabulary is 0 to {self.vocab_size - 1}")
        return list(prompt), 0

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def requests(self, prompts: Prompt | Sequence[Prompt], options: GenerationOptions | None = None) -> list[Request]:
        """A request per prompt, all with the same options."""
        single = isinstance(prompts, str) or (prompts and all(isinstance(one, int) for one in prompts))
        encoded = [self.encode(prompt) for prompt in ([prompts] if single else prompts)]  # type: ignore[arg-type]
        options = options or GenerationOptions()
        guide = self.compile(options.grammar) if isinstance(options, GuidedOptions) else None
        return [Request(prompt=ids, options=options, hidden=hidden, index=n, guide=guide) for n, (ids, hidden) in enumerate(encoded)]

    def compile(self, grammar: Grammar) -> Guide | None:
        """The beginning of a grammar for the tokens of the model."""
        return None

    def unknown(self, text: str, ids: Sequence[int]) -> list[str]:
        """The characters or words of a text that are not in the vocabulary."""
        return []


class PromptEncoder(IdEncoder):
    """Prompts to token ids, and the special tokens of a tokenizer: what begins a prompt, ends a completion, is never generated.

    Args:
        tokenizer: tokenizer of the model.
        vocab_size: number of tokens of the model, which may exceed that of the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        super().__init__(len(tokenizer))
        self.tokenizer = tokenizer
        self.eos_ids = tuple(token for token in tokenizer.eos_ids if token < vocab_size)
        self.banned_ids = tuple(sorted({*tokenizer.banned_ids, *range(len(tokenizer), vocab_size)}))
        self.prefix = tokenizer.prompt_prefix
        self._model_tokens = vocab_size
        self._compiler: GrammarCompiler | None = None  # made when a grammar is first used
        self._unknown = None if tokenizer.unk_id in self.eos_ids else tokenizer.unk_id

    def encode(self, prompt: Prompt) -> tuple[list[int], int]:
        if not isinstance(prompt, str):
            return super().encode(prompt)
        ids = self.tokenizer.encode(prompt)
        prefix = self.prefix
        if not (prefix or ids):  # a model needs a token to begin with
            prefix = [token for token in (self.tokenizer.bos_id, self.tokenizer.eos_id) if token is not None][:1]
        return [*prefix, *ids], len(prefix)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def compile(self, grammar: Grammar) -> Guide | None:
        if self._compiler is None:
            self._compiler = GrammarCompiler(self.tokenizer, self._model_tokens, self.eos_ids)
        return self._compiler.compile(grammar)

    def unknown(self, text: str, ids: Sequence[int]) -> list[str]:
        if self._unknown is None or self._unknown not in ids:
            return []
        pieces = dict.fromkeys(text if self.tokenizer.kind == "char" else text.split())
        return [piece for piece in pieces if self._unknown in self.tokenizer.encode(piece)]


def make_encoder(model: LanguageModel, tokenizer: Tokenizer | None) -> IdEncoder:
    vocab_size = model.config.vocab_size
    return IdEncoder(vocab_size) if tokenizer is None else PromptEncoder(tokenizer, vocab_size)


def build_engine(model: LanguageModel, encoder: IdEncoder, options: EngineOptions = EngineOptions()) -> Engine:  # noqa: B008  frozen
    """An engine that decodes to text with this encoder's tokenizer and its special tokens.

    Args:
        model: language model.
        encoder: encoder of its prompts.
        options: limits of the batch, the context and the queue.
    """
    return Engine(model, encoder.decode, options, eos_ids=encoder.eos_ids, banned_ids=encoder.banned_ids)


def best_completions(request: Request) -> list[Completion]:
    """The n completions with the highest log-probability per token, best first; all of them in order if there are no more."""
    n, completions = request.options.n, request.completions
    if len(completions) <= n:
        return completions
    return sorted(completions, key=lambda one: (-one.log_prob / max(len(one.ids), 1), one.index))[:n]


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    prompts: Prompt | Sequence[Prompt],
    options: GenerationOptions | None = None,
    engine_options: EngineOptions | None = None,
) -> list[list[Completion]]:
    """The `n` completions of each prompt, in the order of the prompts. A prompt is a text or a list of token ids.

    Without a tokenizer prompts are ids, completions have ids only, and nothing ends them before `max_tokens`.

    Args:
        model: language model.
        tokenizer: its tokenizer; None: prompts and completions are token ids.
        prompts: a prompt or several, each a text or a list of token ids.
        options: sampling, number of completions `n`, `max_tokens`, `stop`.
        engine_options: limits of the batch, the context and the queue.
    """
    encoder = make_encoder(model, tokenizer)
    requests = _checked_requests(model, encoder, prompts, options)
    for _ in _chunks(model, encoder, requests, engine_options):
        pass
    return [best_completions(request) for request in requests]


def generate_ids(
    model: LanguageModel,
    ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
    options: GenerationOptions | None = None,
    *,
    eos_ids: Collection[int] = (),
) -> list[list[int]]:
    """The new token ids of each row, `n` lists per prompt; a row ends after one of `eos_ids`. `model.generate(ids, …)` calls this.

    Args:
        model: language model.
        ids: token ids of a prompt, or of several.
        options: sampling, number of completions `n`, `max_tokens`.
        eos_ids: tokens that end a completion.

    Shape: ids (L,) or (B, L) if a tensor.
    """
    encoder = IdEncoder(model.config.vocab_size, eos_ids)
    requests = _checked_requests(model, encoder, ids.tolist() if isinstance(ids, Tensor) else ids, options)
    for _ in _chunks(model, encoder, requests, None):
        pass
    return [completion.ids for request in requests for completion in best_completions(request)]


def stream(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    prompts: Prompt | Sequence[Prompt],
    options: GenerationOptions | None = None,
    engine_options: EngineOptions | None = None,
) -> Iterator[Chunk]:
    """Generate completions as `generate` does, in chunks as they come; those of several prompts are interleaved.

    `chunk.completion.request.index` is the index of the prompt, `chunk.completion.index` that of the completion among its n.

    Args:
        model: language model.
        tokenizer: its tokenizer; None: prompts and completions are token ids.
        prompts: a prompt or several, each a text or a list of token ids.
        options: sampling, number of completions `n`, `max_tokens`, `stop`.
        engine_options: limits of the batch, the context and the queue.
    """
    if options is not None and options.num_completions > options.n:
        raise NotSupported(
            f"best_of={options.best_of} with n={options.n} cannot be streamed: the best are known at the end; call generate instead"
        )
    encoder = make_encoder(model, tokenizer)
    return _chunks(model, encoder, _checked_requests(model, encoder, prompts, options), engine_options)


def few_shot(
    instruction: str, examples: Sequence[tuple[str, str]], query: str, *, input_label: str = "Input", output_label: str = "Output"
) -> str:
    """A prompt that shows a task by examples and ends where the answer should begin. Stop at a blank line: `stop=("\\n\\n",)`.

    >>> print(few_shot("Translate to French.", [("cat", "chat")], "dog"))
    Translate to French.
    <BLANKLINE>
    Input: cat
    Output: chat
    <BLANKLINE>
    Input: dog
    Output:

    Args:
        instruction: description of the task.
        examples: pairs of input and output.
        query: input to answer.
        input_label: label in front of inputs.
        output_label: label in front of outputs.
    """
    shots = [f"{input_label}: {question}\n{output_label}: {answer}" for question, answer in examples]
    return "\n\n".join([*([instruction] if instruction else []), *shots, f"{input_label}: {query}\n{output_label}:"])


def _checked_requests(
    model: LanguageModel, encoder: IdEncoder, prompts: Prompt | Sequence[Prompt], options: GenerationOptions | None
) -> list[Request]:
    """A request per prompt, with warnings about what is probably not meant."""
    requests = encoder.requests(prompts, options)
    options = options or GenerationOptions()
    if options.stop and not isinstance(encoder, PromptEncoder):
        raise NotSupported(f"stop={options.stop!r} without a tokenizer, so there is no text to find it in; use eos_ids")
    if options.num_completions > 1 and options.temperature == 0:
        _warn(f"{options.num_completions} completions per prompt at temperature 0 are all the same; raise the temperature")
    texts = [prompts] if isinstance(prompts, str) else [prompt for prompt in prompts if isinstance(prompt, str)]
    unknown = dict.fromkeys(piece for text in texts for piece in encoder.unknown(text, encoder.encode(text)[0]))
    if unknown:
        shown = ", ".join(map(repr, list(unknown)[:UNKNOWN_SHOWN])) + (", …" if len(unknown) > UNKNOWN_SHOWN else "")
        _warn(f"{len(unknown)} of the prompt's characters or words are not in the vocabulary, and are read as ⟨unk⟩: {shown}")
    longest = max((len(request.prompt) for request in requests), default=0)
    if longest > model.max_length:
        _warn(f"a prompt of {longest} tokens; this model reads the last ones only, at most {model.max_length}")
    return requests


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)  # where generate or stream was called


def _chunks(model: LanguageModel, encoder: IdEncoder, requests: list[Request], engine_options: EngineOptions | None) -> Iterator[Chunk]:
    """All chunks of the completions of these requests, as an engine of their own generates them."""
    engine_options = engine_options or EngineOptions()
    most = max((request.options.num_completions for request in requests), default=1)
    waiting = deque(requests)
    with eval_mode(model):
        engine = build_engine(model, encoder, replace(engine_options, max_batch=max(engine_options.max_batch, most)))
        while waiting or engine.busy:
            while waiting and engine.queued < engine.options.max_queue:
                engine.submit(waiting.popleft())
            yield from engine.step()

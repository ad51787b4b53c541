"""Text generation: prompts in, completions out, many at once.

    completions = generate(model, tokenizer, ["Once upon a time"], GenerationOptions(max_tokens=50, temperature=0.8, seed=1))
    print(completions[0][0].text)

    for chunk in stream(model, tokenizer, "Once upon a time"):
        print(chunk.text, end="", flush=True)

A completion depends on its prompt, the options and its index among the completions of that prompt; not on other prompts, nor on batching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..data import BOS, EOS, PAD, HFTokenizer, Tokenizer
from ..errors import NotSupported
from ..models import LanguageModel, eval_mode
from .engine import Engine, EngineOptions
from .requests import Chunk, Completion, Request
from .sampling import GenerationOptions

Prompt = str | Sequence[int]


class PromptEncoder:
    """Prompts to token ids, and the special tokens of a tokenizer: what begins a prompt, ends a completion, is never generated."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        self.tokenizer = tokenizer
        roles = tokenizer.roles if isinstance(tokenizer, HFTokenizer) else {"pad": PAD, "bos": BOS, "eos": EOS}
        self.eos_ids = tuple({roles[role] for role in ("eos",) if role in roles})
        # special tokens that no text contains, and ids beyond the tokenizer's vocabulary
        special = {roles[role] for role in ("pad", "bos", "cls", "mask") if role in roles} - set(self.eos_ids)
        self.banned_ids = tuple(sorted({*special, *range(len(tokenizer), vocab_size)}))
        if isinstance(tokenizer, HFTokenizer):
            framed = tokenizer.encode_pair("")[0]
            self.prefix = framed[:1] if framed[:1] == [roles.get("bos")] else []
            self.prefix_if_empty = self.prefix or [roles[role] for role in ("bos", "eos") if role in roles][:1]
        else:
            self.prefix = self.prefix_if_empty = [BOS]  # as documents begin in training

    def encode(self, prompt: Prompt) -> tuple[list[int], int]:
        """The token ids of a prompt, and how many of them at the beginning are not part of its text."""
        if not isinstance(prompt, str):
            if any(not 0 <= token < len(self.tokenizer) for token in prompt):
                raise NotSupported(
                    f"a prompt of ids from {min(prompt)} to {max(prompt)}; the tokenizer's vocabulary is 0 to {len(self.tokenizer) - 1}"
                )
            return list(prompt), 0
        ids = self.tokenizer.encode(prompt)
        prefix = self.prefix if ids else self.prefix_if_empty
        return [*prefix, *ids], len(prefix)

    def requests(self, prompts: Prompt | Sequence[Prompt], options: GenerationOptions | None = None) -> list[Request]:
        """A request per prompt, all with the same options."""
        single = isinstance(prompts, str) or (prompts and all(isinstance(one, int) for one in prompts))
        encoded = [self.encode(prompt) for prompt in ([prompts] if single else prompts)]  # type: ignore[arg-type]
        options = options or GenerationOptions()
        return [Request(prompt=ids, options=options, hidden=hidden, index=index) for index, (ids, hidden) in enumerate(encoded)]


def build_engine(model: LanguageModel, encoder: PromptEncoder, options: EngineOptions = EngineOptions()) -> Engine:  # noqa: B008  frozen
    """An engine that decodes to text with this encoder's tokenizer and its special tokens."""
    return Engine(model, encoder.tokenizer.decode, options, eos_ids=encoder.eos_ids, banned_ids=encoder.banned_ids)


def best_completions(request: Request) -> list[Completion]:
    """The n completions with the highest log-probability per token, best first; all of them in order if there are no more."""
    n, completions = request.options.n, request.completions
    if len(completions) <= n:
        return completions
    return sorted(completions, key=lambda one: (-one.log_prob / max(len(one.ids), 1), one.index))[:n]


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Prompt | Sequence[Prompt],
    options: GenerationOptions | None = None,
    engine_options: EngineOptions | None = None,
) -> list[list[Completion]]:
    """The `n` completions of each prompt, in the order of the prompts. A prompt is a text or a list of token ids."""
    encoder = PromptEncoder(tokenizer, model.config.vocab_size)
    requests = encoder.requests(prompts, options)
    for _ in _chunks(model, encoder, requests, engine_options):
        pass
    return [best_completions(request) for request in requests]


def stream(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Prompt | Sequence[Prompt],
    options: GenerationOptions | None = None,
    engine_options: EngineOptions | None = None,
) -> Iterator[Chunk]:
    """The same completions in chunks as they are generated; those of several prompts are interleaved.

    `chunk.completion.request.index` is the index of the prompt, `chunk.completion.index` that of the completion among its n.
    """
    if options is not None and options.num_completions > options.n:
        raise NotSupported(
            f"best_of={options.best_of} with n={options.n} cannot be streamed: the best are known at the end; call generate instead"
        )
    encoder = PromptEncoder(tokenizer, model.config.vocab_size)
    return _chunks(model, encoder, encoder.requests(prompts, options), engine_options)


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
    """
    shots = [f"{input_label}: {question}\n{output_label}: {answer}" for question, answer in examples]
    return "\n\n".join([*([instruction] if instruction else []), *shots, f"{input_label}: {query}\n{output_label}:"])


def _chunks(model: LanguageModel, encoder: PromptEncoder, requests: list[Request], engine_options: EngineOptions | None) -> Iterator[Chunk]:
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

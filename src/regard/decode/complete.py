"""Text goes on: prompts in, completions out, many at once.

    found = complete(model, tokenizer, ["Once upon a time"], Options(most=50, sampling=Sampling(temperature=0.8, seed=1)))
    print(found[0][0].text)

    for piece in stream(model, tokenizer, "Once upon a time"):
        print(piece.text, end="", flush=True)

An answer depends on its prompt, the options and its number among the answers to that prompt; not on other prompts, nor on how they were batched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..data import BOS, EOS, PAD, BorrowedTokenizer, Tokenizer
from ..errors import Busy, NotSupported
from ..models import LanguageModel
from .batches import evaluating
from .engine import Engine
from .requests import Finish, Piece, Request, Row, Said
from .sample import Sampling
from .stops import Stops

Prompt = str | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How prompts are gone on with. The default takes the best token each time."""

    most: int = 16  # tokens at most
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0))
    n: int = 1  # answers to a prompt
    best_of: int | None = None  # so many are written, and the n with the best log-probability a token are given back
    stops: Sequence[str] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    presence: float = 0.0
    frequency: float = 0.0
    alternatives: int | None = None
    echo: bool = False

    def __post_init__(self) -> None:
        if self.n < 1 or (self.best_of is not None and self.best_of < self.n):
            raise NotSupported(f"Options(n={self.n}, best_of={self.best_of}): expected 1 ≤ n ≤ best_of")
        Stops(self.stops)

    @property
    def copies(self) -> int:
        """Answers that are written to a prompt."""
        return self.best_of or self.n


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer to a prompt."""

    text: str
    ids: list[int]  # all tokens chosen, those of a stop string and the end too
    finish: Finish
    log_prob: float  # of the ids
    said: list[Said]  # the tokens of the text with their log-probabilities, if these were asked for


class Streamed(NamedTuple):
    """What an answer has grown by: the number of its prompt, its own number, and the piece."""

    prompt: int
    choice: int
    text: str
    said: list[Said]
    finish: Finish | None


class Text:
    """What the engine must know of a tokenizer: how prompts begin, what ends an answer, what is never said."""

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        self.tokenizer = tokenizer
        roles = tokenizer.roles if isinstance(tokenizer, BorrowedTokenizer) else {"pad": PAD, "bos": BOS, "eos": EOS}
        self.ends = tuple({roles[role] for role in ("eos",) if role in roles})
        # what no text is cut into is never said, and neither are numbers that the tokenizer does not know
        silent = {roles[role] for role in ("pad", "bos", "cls", "mask") if role in roles} - set(self.ends)
        self.never = tuple(sorted({*silent, *range(len(tokenizer), vocab)}))
        if isinstance(tokenizer, BorrowedTokenizer):
            framed = tokenizer.framed("")[0]
            self.first = framed[:1] if framed[:1] == [roles.get("bos")] else []
            self.only = self.first or [roles[role] for role in ("bos", "eos") if role in roles][:1]
        else:
            self.first = self.only = [BOS]  # as documents begin

    def ids(self, prompt: Prompt) -> tuple[list[int], int]:
        """The ids a model reads, and how many of them at the beginning the prompt does not show."""
        if not isinstance(prompt, str):
            if any(not 0 <= token < len(self.tokenizer) for token in prompt):
                raise NotSupported(
                    f"a prompt of ids from {min(prompt)} to {max(prompt)}; the tokenizer knows 0 to {len(self.tokenizer) - 1}"
                )
            return list(prompt), 0
        cut = self.tokenizer.encode(prompt)
        first = self.first if cut else self.only
        return [*first, *cut], len(first)

    def request(self, prompt: Prompt, options: Options) -> Request:
        ids, hidden = self.ids(prompt)
        return Request(
            prompt=ids,
            most=options.most,
            sampling=options.sampling,
            stops=Stops(options.stops),
            bias=options.bias,
            presence=options.presence,
            frequency=options.frequency,
            alternatives=options.alternatives,
            echo=options.echo,
            hidden=hidden,
        )


def engine_for(model: LanguageModel, tokenizer: Tokenizer, **bounds: int) -> Engine:
    """An engine that knows this tokenizer's special tokens; the bounds are those of `Engine`."""
    text = Text(tokenizer, model.config.vocab)
    return Engine(model, tokenizer.decode, ends=text.ends, never=text.never, **bounds)


def best(rows: Sequence[Row], n: int) -> list[Row]:
    """The n answers with the best log-probability a token, best first; all of them, as they are numbered, if there are no more."""
    return list(rows) if len(rows) <= n else sorted(rows, key=lambda row: (-row.log_prob / max(len(row.ids), 1), row.number))[:n]


def complete(
    model: LanguageModel, tokenizer: Tokenizer, prompts: Prompt | Sequence[Prompt], options: Options | None = None, **bounds: int
) -> list[list[Completion]]:
    """The `n` answers to each prompt, in the order of the prompts. A prompt is text or ids; the bounds are those of `Engine`."""
    options = options or Options()
    said: dict[Row, list[Said]] = {}
    rows: list[list[Row]] = []
    for piece in _pieces(model, tokenizer, _prompts(prompts), options, bounds, rows):
        said.setdefault(piece.row, []).extend(piece.said)
    found = []
    for some in rows:
        chosen = [(row, row.finish) for row in best(some, options.n)]
        found.append(
            [
                Completion(text=row.text, ids=row.ids, finish=finish, log_prob=row.log_prob, said=said.get(row, []))
                for row, finish in chosen
                if finish is not None
            ]
        )
    return found


def stream(
    model: LanguageModel, tokenizer: Tokenizer, prompts: Prompt | Sequence[Prompt], options: Options | None = None, **bounds: int
) -> Iterator[Streamed]:
    """The same answers piece by piece, as they are written; those to several prompts come mixed."""
    options = options or Options()
    if options.copies > options.n:
        raise NotSupported(f"best_of={options.best_of} with n={options.n}: which answers are best is known at their end; ask for it whole")
    rows: list[list[Row]] = []
    for piece in _pieces(model, tokenizer, _prompts(prompts), options, bounds, rows):
        number = next(n for n, some in enumerate(rows) if piece.row in some)
        yield Streamed(number, piece.row.number, piece.text, piece.said, piece.finish)


def few_shot(instruction: str, examples: Sequence[tuple[str, str]], query: str, *, given: str = "Input", wanted: str = "Output") -> str:
    """A prompt that shows a task by examples and ends where the answer should begin. Stop at a blank line: `stops=("\\n\\n",)`.

    >>> print(few_shot("Translate to French.", [("cat", "chat")], "dog"))
    Translate to French.
    <BLANKLINE>
    Input: cat
    Output: chat
    <BLANKLINE>
    Input: dog
    Output:
    """
    shown = [f"{given}: {one}\n{wanted}: {other}" for one, other in examples]
    return "\n\n".join([*([instruction] if instruction else []), *shown, f"{given}: {query}\n{wanted}:"])


def _prompts(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(given, str) or (given and all(isinstance(one, int) for one in given)):
        return [given]  # type: ignore[list-item]
    return list(given)  # type: ignore[arg-type]


def _pieces(
    model: LanguageModel, tokenizer: Tokenizer, prompts: list[Prompt], options: Options, bounds: dict[str, int], rows: list[list[Row]]
) -> Iterator[Piece]:
    """Everything an engine says about these prompts. `rows` is filled with the rows of each."""
    text = Text(tokenizer, model.config.vocab)
    with evaluating(model):
        engine = engine_for(model, tokenizer, **{"rows": max(16, options.copies), **bounds})
        while len(rows) < len(prompts) or engine.busy:
            try:
                while len(rows) < len(prompts):
                    rows.append(engine.submit(text.request(prompts[len(rows)], options), options.copies))
            except Busy:
                pass  # the others follow when there is room
            yield from engine.step()

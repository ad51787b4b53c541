"""What tasks on plain text share: the options, reading, the tokenizer, and text as token ids on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..data import Texts, TokenizedSplits, TokenizedText, Tokenizer, Tokenizers, tokenize_texts
from ..data.text import SUFFIXES
from ..errors import BadConfig
from ..models import Model
from ._base import DataOptions, Dataset, Task, TokenizerKind
from ._processor import TextProcessor


@dataclass(frozen=True, kw_only=True)
class TextOptions(DataOptions):
    """Which text, which tokens."""

    data: str = "python-docs"
    """A file, a folder, or several; .jsonl holds one object per line; also .gz, .xz. python-docs: the documentation of this Python."""
    field: str = "text"
    """Field of JSON lines that holds the text; page.body reaches inside."""
    separator: str | None = None
    """A line that ends a document of a text file, as <|endoftext|>; "": a blank line; None: each file is one document."""
    suffixes: tuple[str, ...] = SUFFIXES
    """Suffixes of the files to read in a folder."""
    tokenizer: TokenizerKind = "bpe"
    """Kind of tokens."""
    vocab_size: int = 4000
    """Largest vocabulary size."""
    cache: str | None = None
    """Folder for the tokenized text, to share between runs; the run directory if not given."""


TextOptionsT = TypeVar("TextOptionsT", bound=TextOptions)


class TextTask(Task[TextOptionsT]):
    """A task on plain text."""

    def read(self) -> Texts:
        o = self.options
        return Texts(o.data, field=o.field, separator=o.separator, suffixes=o.suffixes, **o.parts())

    def make_processor(self, raw: Texts, base: TextProcessor | None) -> TextProcessor:
        """Rare characters and words are kept: what is unknown cannot be generated."""
        o = self.options
        if base is not None:
            return base
        tokenizer = Tokenizer.train(raw.train(), o.tokenizer, o.vocab_size, min_count=2 if o.tokenizer == "bpe" else 1)
        return TextProcessor(Tokenizers(tokenizer))

    def encode(self, raw: Texts, processor: TextProcessor, cache: Path) -> Dataset[TokenizedText]:
        found: TokenizedSplits = tokenize_texts(raw, processor.tokenizer, self.options.cache or cache / "tokens")
        return Dataset(found.train, found.valid, found.test, found.digest, found.skipped)

    def check_length(self, model: Model) -> None:
        """Refuse sequences longer than the model reads."""
        option, wanted = self.length_option.replace("_", "-"), getattr(self.options, self.length_option)
        if model.max_length < wanted:
            raise BadConfig(f"--{option} {wanted} for a {model.facts.name} of length {model.max_length}; make one fit the other")


def example_text(folder: Path) -> Path:
    """A small file of JSON lines."""
    path = folder / "text.jsonl"
    lines = (f'{{"text": "The number {n} is {"even" if n % 2 == 0 else "odd"}, and {n + 1} is not."}}\n' for n in range(60))
    path.write_text("".join(lines), encoding="utf-8")
    return path

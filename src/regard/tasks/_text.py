"""What tasks on plain text share: the options, reading, the tokenizer, and text as token ids on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from ..data import Texts, TokenizedSplits, TokenizedText, Tokenizer, Tokenizers, load_tokenizers, tokenize_texts
from ..data.text import SUFFIXES
from ..errors import BadConfig
from ..models import Model
from ._base import Dataset, Task
from ._options import Files, TokenizerOptions
from ._processor import TextProcessor


@dataclass(frozen=True, kw_only=True)
class TextOptions(TokenizerOptions):
    """Data and vocabulary."""

    data: Files = "python-docs"
    """Files or folders: .txt, .jsonl (also .gz, .xz), .csv, .parquet; hf:FOLDER, a dataset; python-docs, the documentation of this Python."""
    field: str = "text"
    """Field or column that holds the text, where there are several; page.body reaches inside."""
    separator: str | None = None
    """A line that ends a document of a text file, as <|endoftext|>; "": a blank line; None: each file is one document."""
    suffixes: tuple[str, ...] = SUFFIXES
    """Suffixes of the files to read in a folder."""
    cache: str | None = None
    """Folder for the tokenized text, to share between runs; the run directory if not given."""


SMALL = 5_000_000  # tokens: below, a model of width 128 learns more in the first minutes
TextOptionsT = TypeVar("TextOptionsT", bound=TextOptions)


class TextTask(Task[TextOptionsT]):
    """A task on plain text."""

    small = False  # little text

    def read(self) -> Texts:
        o = self.options
        return Texts(o.data, field=o.field, separator=o.separator, suffixes=o.suffixes, **o.parts())

    def make_processor(self, raw: Texts, base: TextProcessor | None) -> TextProcessor:
        """Rare characters and words are kept: what is unknown cannot be generated."""
        o = self.options
        if base is not None:
            return base
        if o.tokenizer_file is not None:
            return TextProcessor(load_tokenizers(o.tokenizer_file, o.lowercase))
        # 1,000 for a million characters: a small model learns to spell before it learns many words
        size, least = o.choose_vocab_size(int(raw.survey.characters_D.sum()), 1.0), 2 if o.tokenizer == "bpe" else 1
        tokenizer = Tokenizer.train(raw.sample(), o.tokenizer, size, least, o.lowercase)
        return TextProcessor(Tokenizers(tokenizer))

    def encode(self, raw: Texts, processor: TextProcessor, cache: Path) -> Dataset[TokenizedText]:
        found: TokenizedSplits = tokenize_texts(raw, processor.tokenizer, self.options.cache or cache / "tokens")
        return Dataset(found.train, found.valid, found.test, found.digest, found.skipped, unit="tokens")

    def settle(self, dataset: Dataset[TokenizedText]) -> Self:
        decided = type(self)(self.options)
        decided.small = len(dataset.train) < SMALL
        return decided

    def size_settings(self, model: str) -> dict[str, Any]:
        return {"width": 128} | ({"hidden": 512} if model == "bert" else {}) if self.small and model == self.default_model else {}

    def check_length(self, model: Model) -> None:
        """Refuse sequences longer than the model reads."""
        option, wanted = self.length_option.replace("_", "-"), getattr(self.options, self.length_option)
        if model.max_length < wanted:
            raise BadConfig(f"--{option} {wanted} for a {model.facts.name} of length {model.max_length}; change one to fit the other")


def example_text(folder: Path) -> Path:
    """A small file of JSON lines."""
    path = folder / "text.jsonl"
    lines = (f'{{"text": "The number {n} is {"even" if n % 2 == 0 else "odd"}, and {n + 1} is not."}}\n' for n in range(60))
    path.write_text("".join(lines), encoding="utf-8")
    return path

"""Base class of tasks on plain text: options, reading, the tokenizer, and text as token ids on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ..data import Splits, Texts, TokenizedText, Tokenizers, count_characters, load_tokenizers, tokenize_texts, train_tokenizer
from ..errors import BadConfig, NotSupported
from ..look import Indices, Layers, Maps
from ..models import Model, find_model
from ..runs import Run
from .dial import Profile
from .options import TokenizerOptions, show_files
from .options.text import TextOptions
from .task import Task
from .text_processor import TextProcessor, text_maps

SMALL = 5_000_000  # tokens: below, a model of width 128 learns more in the first minutes
SHOWN = 200  # characters of a text as an example
COUNTED = 5_000_000  # tokens that n-gram baselines count
OptionsT = TypeVar("OptionsT", bound=TokenizerOptions)
TextOptionsT = TypeVar("TextOptionsT", bound=TextOptions)


class TokensTask(Task[OptionsT]):
    """Task whose model reads token ids; `length_option` holds the tokens per sequence."""

    Processor: ClassVar[type[Any]] = TextProcessor
    length_option: str

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        """Vocabulary size, and the longest sequence."""
        length = getattr(self.options, self.length_option)
        return {"vocab_size": len(self.processor.tokenizer), find_model(model).length_setting: length}

    @classmethod
    def imported_options(cls, model: Model) -> Any:
        return cls.Options(data="", **{cls.length_option: model.max_length})

    def attention_maps(self, run: Run[Any], text: str, layers: Layers, heads: Indices, options: Any) -> tuple[str, Maps]:
        return "", text_maps(run.model, run.processor, text, layers, heads)


class TextTask(TokensTask[TextOptionsT]):
    """Task on plain text."""

    unit = "tokens"
    small = SMALL

    def read(self) -> Splits[Any]:
        o = self.options
        texts = Texts(o.data, field=o.field, separator=o.separator, suffixes=o.suffixes, **o.parts())
        return Splits(texts, texts, texts)  # read lazily: `prepare` tokenizes the three parts

    def own_input(self) -> str:
        """Beginning of the last text of the data that is held out, or of any."""
        if not self.options.data:
            return ""
        found: dict[str, str] = {}
        for piece in self.read().train.pieces():
            if piece.text.strip():
                found.setdefault(piece.part, piece.text[:SHOWN].strip())
            if "test" in found:
                break
        return next((found[part] for part in ("test", "valid", "train") if part in found), "")

    def profile(self, data: Splits[Texts]) -> Profile:
        kind = "characters" if self.options.tokenizer in ("char", "byte") else "subwords"
        return {"characters": count_characters(data.train, self.options.cache), "tokens": kind}

    def make_processor(self, data: Splits[Texts], base: TextProcessor | None) -> TextProcessor:
        """Rare characters and words are kept: what is unknown cannot be generated."""
        o, texts = self.options, data.train
        if base is not None:
            return base
        if o.tokenizer_file is not None:
            return TextProcessor(load_tokenizers(o.tokenizer_file, o.lowercase))
        # 1,500 for half a million characters: on the documentation of Python 700 have 1.48 bits per byte, 1,500 1.29 and 3,000 1.36
        size, least = o.choose_vocab_size(count_characters(texts, o.cache), 2.2), 2 if o.tokenizer == "bpe" else 1
        return TextProcessor(Tokenizers(train_tokenizer(texts, o.cache, o.tokenizer, size, least, o.lowercase)))

    def prepare(self, data: Splits[Texts], cache: Path) -> Splits[TokenizedText]:
        return tokenize_texts(data.train, self.processor.tokenizer, self.options.cache or cache / "tokens")

    def check(self, data: Splits[TokenizedText], model: Model) -> None:
        """Refuse to train without documents, and on sequences longer than the model reads."""
        if not data.train.documents or not data.valid.documents:
            raise NotSupported(
                f"{show_files(self.options.data)}: too short: {data.train.documents:,} documents to train on and {data.valid.documents:,} for "
                "validation; add text, or give the validation text with --valid"
            )
        option, wanted = self.length_option.replace("_", "-"), getattr(self.options, self.length_option)
        if model.max_length < wanted:
            raise BadConfig(f"--{option} {wanted} for a {model.facts.name} of length {model.max_length}; change one to fit the other")

"""Options that tasks share: which data, which tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from ..data import Tokenizer, Tokenizers, load_tokenizers
from ..data.arrow import PREFIX, is_dataset

TokenizerKind = Literal["bpe", "unigram", "word", "char", "byte"]
Files = str | tuple[str, ...]
OnError = Literal["stop", "skip"]
Pairs = Sequence[tuple[str, str]]  # source and target


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Data."""

    data: Files = ""
    """The data to train on."""
    valid: Files | None = None
    """Data for validation; held out from --data if not given."""
    test: Files | None = None
    """Data for the final test; held out from --data if not given."""
    shares: tuple[float, float] = (0.05, 0.05)
    """Fractions of --data that are held out for validation and test."""
    on_error: OnError = "stop"
    """Malformed lines: stop with file and line number, or skip and count them."""

    def parts(self) -> dict[str, Any]:
        """What every reader of --data is told about its three parts."""
        return {"valid": self.valid, "test": self.test, "shares": self.shares, "on_error": self.on_error}

    def whole(self, data: Files) -> Self:
        """The same for other data of which nothing is held out."""
        return replace(self, data=data, valid=None, test=None, shares=(0.0, 0.0))

    def absolute(self) -> Self:
        """The same with absolute paths, so that a run finds its data from any directory."""
        paths: dict[str, Any] = {name: absolute_files(given) for name in ("data", "valid", "test") if (given := getattr(self, name))}
        return replace(self, **paths)


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(DataOptions):
    """Data and vocabulary."""

    tokenizer: TokenizerKind = "bpe"
    """Kind of tokenizer; --init-from brings its own."""
    vocab_size: int | None = None
    """Maximum vocabulary size; if not given, 500 to 8,000 subwords, more for longer texts."""
    lowercase: bool = False
    """Lower-case all text."""
    tokenizer_file: str | None = None
    """Use this tokenizer.json instead, of the tokenizers library or of another run; or a folder that contains one."""

    def choose_vocab_size(self, characters: int, factor: float = 4.0) -> int:
        """The vocabulary size that was given, or one for this much text: 2,000 subwords for a quarter of a million characters."""
        if self.vocab_size is not None or self.tokenizer not in ("bpe", "unigram"):
            return self.vocab_size or 8000  # there are no more words or characters than the text has
        return min(max(round(int(factor * characters**0.5), -2), 500), 8000)

    def tokenizers_of(self, texts: Sequence[str]) -> Tokenizers:
        """That of --tokenizer-file, or one trained on these texts."""
        if self.tokenizer_file is not None:
            return load_tokenizers(self.tokenizer_file, self.lowercase)
        size = self.choose_vocab_size(sum(map(len, texts)))
        return Tokenizers(Tokenizer.train(texts, self.tokenizer, size, lowercase=self.lowercase))

    def tokenizers_of_pairs(self, pairs: Pairs, joint: bool = True) -> Tokenizers:
        """The same for pairs of texts, with one vocabulary for both or one for each."""
        if self.tokenizer_file is not None:
            return load_tokenizers(self.tokenizer_file, self.lowercase)
        size = self.choose_vocab_size(sum(len(source) + len(target) for source, target in pairs))
        return Tokenizers.train(pairs, self.tokenizer, size, joint, lowercase=self.lowercase)


def absolute_files(given: Files) -> Files:
    """Files that exist by their absolute paths; names of embedded data, and what is not there, unchanged."""
    if not isinstance(given, str):
        return tuple(str(absolute_files(one)) for one in given)
    if is_dataset(given):
        name, mark, split = given.removeprefix(PREFIX).partition("#")
        return f"{PREFIX}{os.path.abspath(name)}{mark}{split}" if Path(name).exists() else given
    if Path(given).exists():
        return os.path.abspath(given)
    several = given.split()
    return tuple(map(os.path.abspath, several)) if len(several) > 1 and all(Path(one).exists() for one in several) else given


def show_files(files: Files) -> str:
    """Files as a user would name them."""
    return files if isinstance(files, str) else " ".join(files)

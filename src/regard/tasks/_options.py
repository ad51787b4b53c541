"""Options that tasks share: which data, which tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import nn

from ..data import HFTokenizer, Tokenizer, Tokenizers, load_tokenizers
from ..data.arrow import PREFIX, is_dataset
from ..data.vectors import read_vectors, vector_size
from ..errors import BadConfig
from ..models import MODELS, Model, find_model

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


@dataclass(frozen=True, kw_only=True)
class VectorOptions(TokenizerOptions):
    """Data and vocabulary, with pretrained word vectors."""

    vectors: str | None = None
    """Pretrained word vectors that the embeddings begin with: a text file of GloVe, word2vec or fastText (also .gz, .xz), with --tokenizer word."""

    def absolute(self) -> Self:
        found = super().absolute()
        return found if self.vectors is None else replace(found, vectors=str(absolute_files(self.vectors)))

    def tokenizers_from(self, base: Tokenizers) -> Tokenizers:
        """Those of --init-from, whose model has embeddings already."""
        if self.vectors is not None:
            raise BadConfig(
                f"--vectors {self.vectors} is for a new model; the embeddings of --init-from are trained already, omit one of the two"
            )
        return base

    def vector_settings(self, model: str) -> dict[str, int]:
        """The width of the embeddings of a new model: that of the vectors."""
        if self.vectors is None:
            return {}
        if self.tokenizer != "word":
            raise BadConfig(f"--vectors {self.vectors} has a vector per word; use it with --tokenizer word, not {self.tokenizer}")
        if "embedding" not in find_model(model).Config.__dataclass_fields__:
            known = ", ".join(sorted(kind.facts.name for kind in MODELS if "embedding" in kind.Config.__dataclass_fields__))
            raise BadConfig(f"--vectors: {model} has no word embeddings of a width of their own; models that have: {known}")
        return {"embedding": vector_size(self.vectors)}

    def set_embeddings(self, model: Model, tokenizer: Tokenizer | HFTokenizer) -> None:
        """Give the words of the vocabulary that --vectors has their vectors; the others keep their random ones."""
        if self.vectors is None:
            return
        embedding = next(part for part in model.modules() if isinstance(part, nn.Embedding) and part.num_embeddings == len(tokenizer))
        ids = {token.strip(): number for number, token in enumerate(tokenizer.vocabulary)}
        words, vector_ND = read_vectors(self.vectors, ids.keys())
        if not words:
            raise BadConfig(
                f"--vectors {self.vectors}: none of the {len(ids):,} words of the vocabulary is there; perhaps it wants --lowercase"
            )
        if vector_ND.shape[1] != embedding.embedding_dim:
            raise BadConfig(
                f"--vectors {self.vectors} has {vector_ND.shape[1]} numbers per word; omit --set embedding={embedding.embedding_dim}"
            )
        with torch.no_grad():
            embedding.weight[[ids[word] for word in words]] = torch.from_numpy(vector_ND)


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

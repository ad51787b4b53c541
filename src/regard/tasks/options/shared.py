"""Options that tasks share (data, vocabulary, beam search), and `Declaration`, all that the command line shows of a task without PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ...bounds import Bounded, NonNegative, Size
from ...data.arrow import PREFIX, is_dataset
from ...errors import NotSupported
from ...train.options import TrainOptions

TokenizerKind = Literal["bpe", "unigram", "word", "char", "byte"]
Files = str | tuple[str, ...]
OnError = Literal["stop", "skip"]
Targets = Literal["qv", "all"]  # of LoRA adapters, as `layers.lora` has them
MetricName = Literal["accuracy", "f1", "f1_micro", "matthews", "f1_tokens", "f1_spans", "pearson", "spearman", "mse"]  # of classifiers
Pairs = Sequence[tuple[str, str]]  # source and target


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Nothing to choose."""


class Declaration:
    """Name, options and defaults of a task: what lists, help pages and the parser need. `Task` is one; tasks of this package declare theirs in
    `tasks/options/NAME.py`, which imports no PyTorch. The class docstring has one sentence, then `As in:` and commands."""

    name: ClassVar[str]
    Options: ClassVar[type[Any]]
    EvaluateOptions: ClassVar[type[Any]] = NoOptions
    PredictOptions: ClassVar[type[Any]] = NoOptions
    LookOptions: ClassVar[type[Any]] = NoOptions
    default_model: ClassVar[str]
    default_train: ClassVar[TrainOptions] = TrainOptions()
    main_options: ClassVar[tuple[str, ...]] = ()  # options that `--help` shows beside those that all tasks have, such as context_length


@dataclass(frozen=True, kw_only=True)
class DataOptions(Bounded):
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

    def one_file(self, name: str) -> str | None:
        """Value of --data, --valid or --test, for tasks whose data is one file or folder."""
        given: Files | None = getattr(self, name)
        if given is None or isinstance(given, str):
            return given
        if len(given) == 1:
            return given[0]
        raise NotSupported(f"--{name} {show_files(given)}: expected one file or folder; name others with --valid and --test")

    def parts(self) -> dict[str, Any]:
        """Arguments of a reader of three parts."""
        return {"valid": self.valid, "test": self.test, "shares": self.shares, "on_error": self.on_error}

    def whole(self, data: Files) -> Self:
        """Options for other data of which nothing is held out."""
        return replace(self, data=data, valid=None, test=None, shares=(0.0, 0.0))

    def absolute(self) -> Self:
        """Options with absolute paths, so that a run finds its data from any directory."""
        paths: dict[str, Any] = {name: absolute_files(given) for name in ("data", "valid", "test") if (given := getattr(self, name))}
        return replace(self, **paths)


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(DataOptions):
    """Data and vocabulary."""

    tokenizer: TokenizerKind = "bpe"
    """Kind of tokenizer; --init-from brings its own."""
    vocab_size: Size | None = None
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


@dataclass(frozen=True, kw_only=True)
class VectorOptions(TokenizerOptions):
    """Data and vocabulary, with pretrained word vectors."""

    vectors: str | None = None
    """Pretrained word vectors that the embeddings begin with: a text file of GloVe, word2vec or fastText (also .gz, .xz), with --tokenizer word."""

    def absolute(self) -> Self:
        found = super().absolute()
        return found if self.vectors is None else replace(found, vectors=str(absolute_files(self.vectors)))


@dataclass(frozen=True, kw_only=True)
class BeamOptions(Bounded):
    """Search."""

    beam: Size = 4
    """Beam width; 1: greedy."""
    length_penalty: NonNegative = 0.6
    """Exponent of the length penalty ((5 + length) / 6)^x; 0: none; larger values favour longer translations."""

    @property
    def words(self) -> str:
        """The search in words, for reports."""
        return f"beam {self.beam}" if self.beam > 1 else "greedy"


@dataclass(frozen=True, kw_only=True)
class GreedyOptions(BeamOptions):
    beam: Size = 1
    nbest: Size = 1
    """Answers to choose from in the explorer, best first; a beam of at least as many."""


@dataclass(frozen=True, kw_only=True)
class ClassesOptions(Bounded):
    """Output."""

    nbest: Size = 1
    """Labels per input, most likely first, with their probabilities."""


def absolute_files(given: Files) -> Files:
    """Files that exist by their absolute paths; names of embedded data, and what is not there, unchanged.

    Args:
        given: one name, or several.
    """
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
    """Files as a user would name them.

    Args:
        files: one name, or several.
    """
    return files if isinstance(files, str) else " ".join(files)

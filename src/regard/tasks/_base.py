"""The contract of a task: a class declares its options, reads its data, builds its model, and uses what was trained.

    class Reverse(Task[ReverseOptions]):                  options: ONE frozen dataclass, every field with a default and a help text under it
        name, default_model, model_kind = "reverse", "transformer", Translator

        def read(self): ...                               the user's data, as it is
        def make_processor(self, raw, base): ...          what is saved with a run: tokenizer, label names
        def encode(self, raw, processor, cache): ...      a Dataset: training, validation and test part, and a digest
        def objective(self, dataset, processor, model, seed): ...     what the training loop asks (`train.Objective`)
        def evaluate(self, run, data, options): ...       a Report
        def predict(self, run, inputs, options): ...      a Prediction per input

`tasks.train` trains any of them, and every command picks a new one up from its import line in `tasks/__init__.py`. What is not on text says
itself how to load its processor and how to show attention, and whether an input is a text or the name of a file (`inputs`). An answer may
come with files of its own: a drawing, an image.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from torch import Tensor

from ..errors import BadConfig, MissingFile, NotSupported
from ..look import Indices, Layers, Maps
from ..models import MODELS, Model, body_of, build, find_model
from ..runs import Run
from ..train import Objective, TrainOptions
from ..train.config import WARMUP
from ._options import DataOptions, Files, show_files
from ._processor import TextProcessor, text_maps


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Nothing to choose."""


OptionsT = TypeVar("OptionsT", bound=DataOptions)
Part = TypeVar("Part", covariant=True)
Kind = TypeVar("Kind", bound=Model)


@dataclass(frozen=True)
class Dataset(Generic[Part]):
    """Three parts of the data, ready for batches; `digest` is a fingerprint of all of it."""

    train: Part
    valid: Part
    test: Part
    digest: str
    skipped: str = ""  # malformed lines, in words
    unit: str = "examples"  # that the length of a part counts


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an evaluation found: metrics by name, notes in words, a table, and further plain values for JSON."""

    metrics: Mapping[str, float]
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | int | float]] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ()  # the answer to each example, for `evaluate --out`

    def to_json(self) -> dict[str, Any]:
        table = {"rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows]} if self.rows else {}
        return {**self.metrics, **self.details, **table}


class BeamPrefix(NamedTuple):
    """The beginning of an answer during a search, or all of it."""

    tokens: list[str]
    log_prob: float
    weights_M: Tensor  # attention to the input of the query that chose the last token
    ended: bool = False


@dataclass(frozen=True)
class Prediction:
    """The answer to one input, as text (with several answers, a line each) and as plain values; `files` by suffix, as in ".png"."""

    text: str
    values: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Example:
    """Tiny data of a task, for tests and trials: options, a small model, and an input to predict."""

    options: Any
    settings: Mapping[str, Any]
    input: str
    broken: str | Callable[[Path], None] = ""  # a malformed line for the file of `options.data`, or what adds a malformed item to a copy


class Task(ABC, Generic[OptionsT]):
    """A task and its options; see the module's docstring. Its class docstring has one sentence, then `As in:` and an example command."""

    name: ClassVar[str]
    Options: ClassVar[type[Any]]
    EvaluateOptions: ClassVar[type[Any]] = NoOptions
    PredictOptions: ClassVar[type[Any]] = NoOptions
    LookOptions: ClassVar[type[Any]] = NoOptions
    model_kind: ClassVar[type[Model]]
    body_kinds: ClassVar[tuple[type[Model], ...]] = ()  # models that it can be built from, where `model_kind` wraps another one
    default_model: ClassVar[str]
    live_options: ClassVar[Any] = None  # LookOptions of the explorer's page, where they are not the defaults
    searches: ClassVar[bool] = False  # answers are found by beam search, which `watch` shows
    inputs: ClassVar[Literal["text", "file"]] = "text"  # what `predict` and `look` are given: a text, or the name of a file
    default_train: ClassVar[TrainOptions] = TrainOptions()
    most_warmup: ClassVar[int] = WARMUP  # steps, if no number is given
    length_option: ClassVar[str] = ""  # the option that holds the tokens per sequence, where there is one
    next_commands: ClassVar[str] = 'regard evaluate {out}        regard predict {out} "…"        regard look {out} "…"'

    def __init__(self, options: OptionsT | None = None):
        self.options: OptionsT = self.Options() if options is None else options

    # -- training ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self) -> Any:
        """The data as they are."""

    @abstractmethod
    def make_processor(self, raw: Any, base: Any | None) -> Any:
        """What turns inputs into tensors, made from the training part; `base` is that of the run to initialise from."""

    def load_processor(self, folder: Path) -> Any:
        """What `save` of the processor wrote."""
        return TextProcessor.load(folder)

    @abstractmethod
    def encode(self, raw: Any, processor: Any, cache: Path) -> Dataset[Any]:
        """The three parts; `cache` is a folder to keep files in."""

    def size_settings(self, model: str) -> dict[str, Any]:
        """Sizes of a new model that suit the size of the data, where the user gives none."""
        return {}

    @classmethod
    def train_defaults(cls, model: str) -> TrainOptions:
        """The training options for a new model of this name, where the user gives none."""
        return cls.default_train

    def settle(self, dataset: Dataset[Any]) -> Self:
        """The same task with those options decided that depend on the data."""
        return self

    def model_settings(self, model: str, processor: Any) -> dict[str, Any]:
        """Settings of the model that follow from the data: with a `length_option` its vocabulary size and the longest sequence."""
        self.check_kind(model)
        if not self.length_option:
            return {}
        return {"vocab_size": len(processor.tokenizer), find_model(model).length_setting: getattr(self.options, self.length_option)}

    def check_kind(self, model: str) -> None:
        """Refuse by name a model of another kind than the task's."""
        wanted = self.body_kinds or (self.model_kind,)
        if not issubclass(find_model(model), wanted):
            known = ", ".join(kind.facts.name for kind in MODELS if issubclass(kind, wanted))
            raise BadConfig(f"{model} is not a model for {self.name}; use one of {known}")

    def adapt(self, body: Model, processor: Any) -> Model:
        """A model, new or pretrained, made ready for this task."""
        body = body_of(body)
        if not isinstance(body, self.model_kind):
            raise NotSupported(f"{body.facts.name} is not a {words_for(self.model_kind)}; use {self.default_model}, for example")
        return body

    def build(self, model: str, settings: Mapping[str, Any], processor: Any) -> Model:
        """A new model by name."""
        return self.adapt(build(model, settings), processor)

    def initialise(self, body: Model, processor: Any) -> None:
        """Set those parameters of a new model that do not begin at random."""

    def freeze(self, model: Model) -> None:
        """Freeze those parameters of an initialised model that must not change."""

    @abstractmethod
    def objective(self, dataset: Dataset[Any], processor: Any, model: Model, seed: int) -> Objective:
        """What the training loop asks: batches, batch, loss, evaluate, metric."""

    # -- use -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, run: Run[Any], data: Files | None, options: Any) -> Report:
        """Metrics on `data`, or on the test part of the run's own data."""

    @abstractmethod
    def predict(self, run: Run[Any], inputs: Sequence[str], options: Any) -> list[Prediction]:
        """An answer to each input; none is empty."""

    def score(self, run: Run[Any], pairs: Sequence[tuple[str, str]]) -> list[Prediction]:
        """The log-probability of a given output for each (input, output)."""
        raise NotSupported(f"a run of the task {self.name} writes no text, so there is none to score; --score is for translators")

    def attention_maps(self, run: Run[Any], text: str, layers: Layers, heads: Indices, options: Any) -> tuple[str, Maps]:
        """Text worth showing beside them (or none), and maps; `layers=None` leaves the choice to the task, "*" takes all.

        `text` is an input as `predict` takes it; the maps of an image hold the image (`Maps.image`).
        """
        return "", text_maps(run.model, run.processor, text, layers, heads)

    def watch(self, run: Run[Any], text: str) -> Iterator[list[BeamPrefix]]:
        """The answer to a text as it is searched: after each step what has ended and the prefixes that go on, each best first. Of tasks with `searches`."""
        raise NotSupported(f"a run of the task {self.name} has no beam to watch")

    @classmethod
    def fits(cls, kind: type[Model], per_token: bool) -> bool:
        """Whether a model of this kind, trained elsewhere, is one for this task; `per_token`: of a classifier."""
        return issubclass(kind, cls.model_kind)

    @classmethod
    def imported_options(cls, model: Model) -> Any:
        """The options of a run whose model was trained elsewhere: it has no data."""
        return cls.Options(data="", **({cls.length_option: model.max_length} if cls.length_option else {}))

    @classmethod
    @abstractmethod
    def example(cls, folder: Path) -> Example:
        """Tiny data written to a folder."""

    def test_data(self, run: Run[Any], data: Files | None) -> Any:
        """What to evaluate on: all of `data`, or the test part of what the run was trained on, if it is still the same."""
        if not data and not self.options.data:
            raise NotSupported(f"{run.folder} was imported and has no data of its own; name some with --data")
        if not data:
            try:
                own = self.encode(self.read(), run.processor, run.folder)
            except MissingFile as wrong:
                raise MissingFile(
                    f"{run.folder} was trained on {show_files(self.options.data)}, which no longer exists; name other data with --data"
                ) from wrong
            if run.config.digest not in (None, own.digest):  # the test part may hold what was trained on
                raise NotSupported(
                    f"the data of {run.folder} has changed since it was trained, and its test part may now hold examples that it was "
                    "trained on; name data that it has not seen with --data"
                )
            part = own.test
        else:
            other = type(self)(self.options.whole(data))
            with TemporaryDirectory() as cache:  # memory-mapped files stay readable after their removal
                whole = other.encode(other.read(), run.processor, Path(cache))
            part = whole.train
            if whole.skipped:
                print(whole.skipped, file=sys.stderr)
        if not len(part):
            raise NotSupported(f"{show_files(data) if data else 'the test part of this run'} is empty; name data with --data")
        return part

    def test_name(self, data: Files | None) -> str:
        """What `test_data` is, in words."""
        return show_files(data) if data else f"test part of {show_files(self.options.test or self.options.data)}"


# -- what tasks share --------------------------------------------------------------------------------------------------

KINDS = {
    "Translator": "translator",
    "CopyModel": "summarizer",
    "LanguageModel": "causal language model",
    "TextModel": "model of texts",
    "TextEncoder": "text encoder",
    "Classifier": "classifier",
    "Reader": "reader of passages",
    "ImageTransformer": "model of pixels",
    "ViViT": "classifier of clips",
}


def words_for(kind: type[Model]) -> str:
    """A kind of model in words."""
    return KINDS.get(kind.__name__, kind.__name__)


def digest(lines: Iterable[str]) -> str:
    """A fingerprint of some lines."""
    whole = hashlib.blake2b(digest_size=8)
    for line in lines:
        whole.update(f"{line}\n".encode())
    return whole.hexdigest()


def require_parts(data: Files, train: Any, valid: Any, unit: str) -> None:
    """Refuse to train without data to train on and to validate with."""
    if not train or not valid:
        raise NotSupported(f"{show_files(data)}: {train:,} {unit} to train on and {valid:,} for validation; training needs both")


def check_range(options: object, **bounds: tuple[bool, str]) -> None:
    """Refuse by name every option that is out of its bounds: name=(fits, "what is expected")."""
    wrong = [f"{name}={getattr(options, name)!r}, expected {expected}" for name, (fits, expected) in bounds.items() if not fits]
    if wrong:
        raise BadConfig("; ".join(wrong))

"""The contract of a task: options, a processor, examples, batches, a loss, answers and metrics. Everything else follows from them.

    class Bags(Task[BagsOptions]):                          options: ONE frozen dataclass, every field with a default and a help text
        name, Options, Processor = "bags", BagsOptions, Scale
        model_kind, default_model = BagPool, "bag_pool"

        def examples(self, source): ...                     one source of data → examples, or a Fault for each that cannot be used
        def parse(self, text): ...                          an input of `predict` and `look` → an example
        def settings(self, model, data): ...                settings of a new model that follow from the data
        def batch(self, item, generator): ...               CPU tensors of some examples; chance comes from the generator (None: evaluation)
        def loss(self, model, batch): ...                   a sum, its count, further sums, and outputs
        def answers(self, outputs, batch): ...              an answer per example, from the outputs
        def metrics(self, sums, answers, examples): ...     by division of the sums, or from the answers
        def prediction(self, example, answer, options): ... an answer as text and as plain values
        def labels(self, example, answer): ...              names of queries and keys, for attention maps

`docs/extend/task.md` has a whole one. Optional: `encode` (rows that batches are made of: tokens, windows), `plan` (which of them go together),
`generate` (answers that are searched or sampled), `lr_factor` and `self.progress` (losses that change in the course of training), `report`.
`tasks.train` trains any of them, and every command picks it up; `tasks.measure` is the one loop without gradients behind all of that.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ..data.batches import Numbers, similar_lengths
from ..data.splits import Splits, read_splits
from ..errors import BadConfig, BadFile, MissingFile, NotSupported, RegardError
from ..files import read_json, write_json
from ..look import Indices, Layers, Maps, capture
from ..models import Model, body_of, build, find_model, models
from ..runs import Run
from ..train import Loss, Metric, Progress, TrainOptions
from ..train.options import WARMUP
from .dial import Profile
from .measuring import answer, measure
from .options import DataOptions, Declaration, Files, show_files

OptionsT = TypeVar("OptionsT", bound=DataOptions)
Start = Literal["new", "pretrained", "loaded"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of an evaluation: metrics by name, notes in words, a table, and further plain values for JSON."""

    metrics: Mapping[str, float]  # by name
    notes: Sequence[str] = ()  # lines to print under them
    columns: Sequence[str] = ()  # headings of the table
    rows: Sequence[Sequence[str | int | float]] = ()  # rows of the table, with a cell per column
    details: Mapping[str, Any] = field(default_factory=dict)  # further plain values, for JSON
    outputs: Sequence[str] = ()  # the answer to each example, for `evaluate --out`

    def to_json(self) -> dict[str, Any]:
        table = {"rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows]} if self.rows else {}
        return {**self.metrics, **self.details, **table}


class InputField(NamedTuple):
    """Part of an input that is typed by itself; a tab separates it from the next one."""

    name: str  # heading of the field
    required: bool = True  # False: may stay empty


class BeamPrefix(NamedTuple):
    """The beginning of an answer during a search, or all of it."""

    tokens: list[str]  # tokens so far
    log_prob: float  # sum over these tokens
    weights_M: Tensor  # attention to the input of the query that chose the last token
    ended: bool = False  # it is a whole answer


@dataclass(frozen=True)
class Prediction:
    """Answer to one input, as text (with several answers, a line each) and as plain values; `files` by suffix, as in ".png"."""

    text: str  # lines for the terminal
    values: Mapping[str, Any]  # plain values, for --json
    files: Mapping[str, bytes] = field(default_factory=dict)  # contents by suffix, for --files


@dataclass(frozen=True)
class JsonProcessor:
    """Processor of plain values: a frozen dataclass, saved as processor.json. Write `fit`."""

    FILE: ClassVar[str] = "processor.json"

    @classmethod
    def fit(cls, examples: Sequence[Any]) -> Self:
        """Processor for these training examples.

        Args:
            examples: examples of the training part.
        """
        return cls()

    def save(self, folder: Path) -> None:
        write_json(folder / self.FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Self:
        try:
            return msgspec.convert(read_json(folder / cls.FILE), cls)
        except msgspec.ValidationError as wrong:
            raise BadFile(f"{folder / cls.FILE}: {wrong}") from wrong


class Plan(Sequence[Any]):
    """Batches of rows, in groups of numbers: a list of rows each, or what `rows.select(numbers)` gives. They are made when they are asked for."""

    def __init__(self, rows: Any, groups: Sequence[Numbers]):
        self.rows, self.groups = rows, groups

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Plan(self.rows, self.groups[at])
        numbers = self.groups[at]
        return self.rows.select(numbers) if hasattr(self.rows, "select") else [self.rows[int(n)] for n in numbers]


def cut(order: Numbers, size: int) -> list[Numbers]:
    """An order in groups of this size."""
    return [order[at : at + size] for at in range(0, len(order), size)]


class Task(Declaration, ABC, Generic[OptionsT]):
    """A task with its options and, once there is data, its processor. The class docstring has one sentence, then `As in:` and commands.

    Args:
        options: options of the task; None: their defaults.
        processor: processor of a run; None until there is data to make one.
    """

    Processor: ClassVar[type[Any]]
    valid_options: ClassVar[Any] = None  # EvaluateOptions of validations in training, where they are not the defaults
    live_options: ClassVar[Any] = None  # LookOptions of the explorer's page, where they are not the defaults
    model_kind: ClassVar[type[Model]]
    body_kinds: ClassVar[tuple[type[Model], ...]] = ()  # models that it can be built from, where `model_kind` wraps another one
    small: ClassVar[int] = 0  # examples: below, a new model has the sizes of `small_sizes`, and learns more in the first minutes
    small_sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # by model
    most_warmup: ClassVar[int] = WARMUP  # steps, if no number is given
    metric: Metric = Metric("loss", higher=False)  # that decides
    unit: str = "examples"
    loss_unit: str = ""  # that the losses count, if not examples
    inputs: ClassVar[Literal["text", "file"]] = "text"  # kind of input of `predict` and `look`: a text, or the name of a file
    next_commands: ClassVar[str] = 'regard evaluate {out}        regard predict {out} "…"        regard look {out} "…"'

    def __init__(self, options: OptionsT | None = None, processor: Any = None):
        self.options: OptionsT = self.Options() if options is None else options
        self.processor = processor
        self.progress = Progress()  # of the training, before each step

    def with_options(self, **changes: Any) -> Self:
        """The task with some options changed.

        Args:
            **changes: values by name of the option.
        """
        return type(self)(replace(self.options, **changes), self.processor)

    # -- data ----------------------------------------------------------------------------------------------------------

    def examples(self, source: str) -> Iterable[Any]:
        """Examples of one source: a file, a folder, the name of embedded data; a `Fault` in place of one that cannot be used.

        Args:
            source: one of --data, --valid, --test.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither `examples` nor `read`")

    def key(self, example: Any) -> str:
        """Content that decides the part of an example: equal ones are never on both sides of a split.

        Args:
            example: an example of any part.
        """
        return str(example)

    def read(self) -> Splits[Any]:
        """Training, validation and test part of the user's data."""
        o = self.options
        return read_splits(self.examples, o.one_file("data"), o.one_file("valid"), o.one_file("test"), o.on_error, o.shares, self.key)

    def profile(self, data: Splits[Any]) -> Profile:
        """Numbers and words that the dial compares with those of its table: how many examples there are, and what kind they are of.

        Args:
            data: splits as `read` gave them.
        """
        return {"examples": len(data.train)}

    def make_processor(self, data: Splits[Any], base: Any | None) -> Any:
        """Processor for this data: what turns inputs into tensors and is saved with a run.

        Args:
            data: splits, of which the training part counts.
            base: processor of the run to initialise from.
        """
        return self.Processor.fit(data.train) if base is None else base

    def load_processor(self, folder: Path) -> Any:
        """Processor that `save` wrote.

        Args:
            folder: run directory.
        """
        return self.Processor.load(folder)

    def prepare(self, data: Splits[Any], cache: Path) -> Splits[Any]:
        """Data in the form that is kept while training: tokens on disk, images at the size of the model.

        Args:
            data: splits as `read` gave them.
            cache: folder for files.
        """
        return data

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Example of an input of `predict` or `look`; where it needs a target, any one.

        Args:
            text: one input; with `inputs = "file"` the name of a file.
        """

    def encode(self, examples: Any, model: Any) -> Any:
        """Rows that batches are made of, made once: token ids in at most as many tokens as the model reads, windows of long texts.

        Args:
            examples: examples of one part.
            model: model that will read the rows; its longest input counts.
        """
        return examples

    def plan(self, rows: Any, epoch: int | None, seed: int = 0) -> Sequence[Any]:
        """Batches of an epoch of training, in order; of an evaluation if `epoch` is None. A function of its arguments alone.

        By default every row once, shuffled, `batch_size` at a time; rows of similar `length` together, if the task knows it.

        Args:
            rows: what `encode` gave.
            epoch: number of the epoch, from 0; None: an evaluation.
            seed: seed of the training.
        """
        lengths, size = self.lengths(rows), self.batch_size(epoch is None)
        if epoch is None:
            order = np.arange(len(rows)) if lengths is None else np.argsort(-lengths, kind="stable")
            return Plan(rows, cut(order, size))
        generator = np.random.default_rng([seed, epoch])
        if lengths is None:
            return Plan(rows, cut(generator.permutation(len(rows)), size))
        batches = similar_lengths(lengths, size, generator)
        return Plan(rows, [batches[n] for n in generator.permutation(len(batches))])

    def batch_size(self, evaluating: bool) -> int:
        """Examples per batch.

        Args:
            evaluating: True in an evaluation, which needs no memory for gradients.
        """
        return int(getattr(self.options, "batch_size", 32))

    def lengths(self, rows: Any) -> Numbers | None:
        """Length of each row, where rows of similar length should go together.

        Args:
            rows: what `encode` gave.
        """
        return None

    @abstractmethod
    def batch(self, item: Any, generator: torch.Generator | None) -> Any:
        """Tensors of one item of a plan, on the CPU. In training all chance comes from `generator`; without one nothing is random.

        Args:
            item: an item of the plan: usually a list of rows.
            generator: random numbers of this batch; None: an evaluation.
        """

    # -- model ---------------------------------------------------------------------------------------------------------

    @classmethod
    def train_defaults(cls, model: str) -> TrainOptions:
        """Training options for a new model of this name, where the user gives none.

        Args:
            model: name of the model.
        """
        return cls.default_train

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        """Settings of a new model that follow from the data and the processor.

        Args:
            model: name of the model.
            data: splits as `prepare` gave them.
        """
        return {}

    def sizes(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        """Sizes of a new model that suit the size of the data, where the user gives none.

        Args:
            model: name of the model.
            data: splits as `prepare` gave them.
        """
        return dict(self.small_sizes.get(model, {})) if len(data.train) < self.small else {}

    def check_kind(self, model: str) -> None:
        """Refuse by name a model of another kind than the task's.

        Args:
            model: name of a model.
        """
        wanted = self.body_kinds or (self.model_kind,)
        if not issubclass(find_model(model), wanted):
            known = ", ".join(name for name, kind in models().items() if issubclass(kind, wanted))
            raise BadConfig(f"{model} is not a model for {self.name}; use one of {known}")

    def adapt(self, body: Model, data: Splits[Any] | None = None, start: Start = "loaded") -> Model:
        """Model made ready for this task: a head, embeddings, adapters.

        Args:
            body: model by name, or of a run.
            data: data to train on; None if a run is loaded.
            start: a new model; one that was trained before; or the model of a run, which has been adapted already.
        """
        body = body_of(body)
        if not isinstance(body, self.model_kind):
            raise NotSupported(f"{body.facts.name} is not a {words_for(self.model_kind)}; use {self.default_model}, for example")
        return body

    def build(self, model: str, settings: Mapping[str, Any], processor: Any) -> Model:
        """Model of a run, without its parameters.

        Args:
            model: name of the model.
            settings: all of its settings.
            processor: processor of the run.
        """
        return type(self)(self.options, processor).adapt(build(model, settings))

    # -- training ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Loss:
        """Summed loss of a batch, on the device of the model. Label smoothing and penalties are for training: ask `model.training`.

        Args:
            model: model that is trained or evaluated.
            batch: what `batch` gave, on the device of the model.
        """

    def lr_factor(self) -> float:
        """Factor of the learning rate at `self.progress`, of tasks with several stages."""
        return 1.0

    def after_step(self, model: nn.Module) -> None:
        """Change parameters after an optimizer step.

        Args:
            model: model that is trained.
        """

    def rates(self, model: nn.Module) -> Mapping[str, float] | None:
        """Learning-rate factors by parameter name.

        Args:
            model: model that is trained.
        """
        return None

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Parameters of the finished model.

        Args:
            model: model that was trained.
            parameters: chosen parameters by name.
        """
        return parameters

    def check(self, data: Splits[Any], model: Model) -> None:
        """Refuse to train what cannot be trained: without data to train on and to validate with.

        Args:
            data: splits as `prepare` gave them.
            model: model to train, adapted to the task.
        """
        if not len(data.train) or not len(data.valid):
            raise NotSupported(
                f"{show_files(self.options.data)}: too few examples: {len(data.train):,} {self.unit} to train on and {len(data.valid):,} for "
                "validation; add data, or give those for validation with --valid"
            )

    # -- answers -------------------------------------------------------------------------------------------------------

    def validation(self, examples: Any) -> Any:
        """Examples of the validation part that each evaluation in training uses; all of them by default.

        Args:
            examples: validation part.
        """
        return examples

    @property
    def answered(self) -> int | None:
        """Validation examples that `generate` answers at each evaluation in training; None: all."""
        return None

    def answers(self, outputs: Any, batch: Any) -> Sequence[Any]:
        """Answer to each example of a batch, on the CPU, from what `loss` gave as outputs.

        Args:
            outputs: `Loss.outputs` of the batch.
            batch: what `batch` gave.
        """
        return ()

    def generate(self, model: Any, examples: Any, options: Any) -> list[Any]:
        """Answer to each example by search or sampling, where a forward pass does not give one.

        Args:
            model: model in evaluation mode.
            examples: examples to answer.
            options: EvaluateOptions, PredictOptions or LookOptions of the task.
        """
        raise NotImplementedError

    def merge(self, answers: list[Any], rows: Any, examples: Any) -> list[Any]:
        """Answers by example, where `encode` made several rows of one.

        Args:
            answers: answer to each row, in order.
            rows: what `encode` gave.
            examples: examples that the rows were made of.
        """
        return answers

    def calibrate(self, model: Any, answers: list[Any], examples: Any) -> list[Any]:
        """Answers with what is tuned on validation data, such as a threshold, which is kept in the model.

        Args:
            model: model that keeps what is tuned.
            answers: answer to each example.
            examples: validation examples.
        """
        return answers

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Any) -> dict[str, float]:
        """Metrics of a part.

        Args:
            sums: sums over the part: `loss`, `count`, and what `Loss.extra` holds.
            answers: answer to each example.
            examples: the examples.
        """
        return {name: value / max(sums["count"], 1) for name, value in sums.items() if name != "count"}

    def baselines(self, train: Any, examples: Any) -> dict[str, dict[str, float]]:
        """Metrics, by name, of predictors that cost a few seconds at most, fitted to the training part: what a model should beat.

        Args:
            train: training part.
            examples: part that the metrics are of.
        """
        return {}

    def report(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Any, options: Any) -> Report:
        """Report of an evaluation; `evaluate` adds a note that names the data.

        Args:
            sums: sums over the part, as `metrics` gets them.
            answers: answer to each example.
            examples: the examples.
            options: EvaluateOptions of the task.
        """
        return Report(metrics=self.metrics(sums, answers, examples))

    def prediction(self, example: Any, answer: Any, options: Any) -> Prediction:
        """Answer as text and as plain values.

        Args:
            example: an example.
            answer: its answer.
            options: PredictOptions of the task.
        """
        return Prediction(str(answer), {"answer": answer})

    def labels(self, example: Any, answer: Any) -> tuple[Sequence[str] | None, Sequence[str] | None]:
        """Names of the queries and of the keys of attention maps.

        Args:
            example: an example.
            answer: its answer.
        """
        return None, None

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[Any], data: Files | None, options: Any) -> Report:
        """Metrics on `data`, or on the test part of the run's own data.

        Args:
            run: run of this task.
            data: sources to evaluate on; None: the test part of the run's own data.
            options: EvaluateOptions of the task.
        """
        train, examples = self._parts_of(run, data)
        found = self.report(*measure(self, run.model, examples, options), examples, options)
        name, count = self.test_name(data), f"{len(examples):,} {self.unit}"
        first, *more = found.notes or ("",)
        baselines = {} if train is None else self.baselines(train, examples)
        known = [
            f"{name}: {show_metrics({one: metrics[one] for one in found.metrics if one in metrics})}" for name, metrics in baselines.items()
        ]
        notes = (f"{name}: {count}{first and f', {first}'}", *more, *(f"baseline {one}" for one in known))
        details = {"data": name, self.unit: len(examples), **found.details, **({"baselines": baselines} if baselines else {})}
        return replace(found, notes=notes, details=details)

    def predict(self, run: Run[Any], inputs: Sequence[str], options: Any) -> list[Prediction]:
        """Answer to each input; none is empty.

        Args:
            run: run of this task.
            inputs: inputs as `parse` takes them.
            options: PredictOptions of the task.
        """
        examples = [self.parse(one) for one in inputs]
        answers = answer(self, run.model, examples, options)
        return [self.prediction(one, found, options) for one, found in zip(examples, answers, strict=True)]

    def score(self, run: Run[Any], pairs: Sequence[tuple[str, str]]) -> list[Prediction]:
        """Log-probability of a given output for each (input, output).

        Args:
            run: run of this task.
            pairs: input and output of each.
        """
        raise NotSupported(f"a run of the task {self.name} writes no text, so there is none to score; --score is for translators")

    def attention_maps(self, run: Run[Any], text: str, layers: Layers, heads: Indices, options: Any) -> tuple[str, Maps]:
        """Text worth showing beside them (or none), and maps. The maps of an image hold the image (`Maps.image`).

        Args:
            run: run of this task.
            text: input as `predict` takes it.
            layers: layers to capture, as in `look.capture`; None: the choice of the task; "*": all.
            heads: heads to capture; None: all.
            options: LookOptions of the task.
        """
        example = self.parse(text)
        with capture(run.model, layers, heads) as maps:
            (found,) = answer(self, run.model, [example], options)
        return self.prediction(example, found, self.PredictOptions()).text, maps.label(*self.labels(example, found))

    def watch(self, run: Run[Any], text: str) -> Iterator[list[BeamPrefix]]:
        """Answer to a text as it is searched: after each step what has ended and the prefixes that go on, each best first.

        Args:
            run: run of this task.
            text: input as `predict` takes it.
        """
        raise NotSupported(f"a run of the task {self.name} has no beam to watch")

    def fields(self, model: Model) -> Sequence[InputField]:
        """Parts of an input of `predict` and `look`.

        Args:
            model: model of a run.
        """
        return (InputField("Text"),)

    def own_input(self) -> str:
        """Input from the test part of the task's own data, or from the part before it; empty if it has none that can be shown.

        The data are read for it.
        """
        data = self.read() if self.options.data and self.inputs == "text" else None
        part = next((part for part in data.parts[::-1] if len(part)), ()) if data else ()
        return self.input_text(next(iter(part))) if len(part) else ""

    def input_text(self, example: Any) -> str:
        """Input that `parse` turns into this example; empty if there is none.

        Args:
            example: an example of any part.
        """
        return example if isinstance(example, str) else ""

    @classmethod
    def searches(cls) -> bool:
        """True if answers are found by a search that `watch` shows."""
        return cls.watch is not Task.watch

    @classmethod
    def fits(cls, kind: type[Model], per_token: bool) -> bool:
        """True if a model of this kind, trained elsewhere, is one for this task.

        Args:
            kind: class of the model.
            per_token: True for a classifier that labels every token, not a whole text.
        """
        return issubclass(kind, cls.model_kind)

    @classmethod
    def imported_options(cls, model: Model) -> Any:
        """Options of a run whose model was trained elsewhere: it has no data.

        Args:
            model: model that was trained elsewhere.
        """
        return cls.Options(data="")

    def test_data(self, run: Run[Any], data: Files | None) -> Any:
        """Examples to evaluate on: all of `data`, or the test part of what the run was trained on, if it is still the same.

        Args:
            run: run of this task.
            data: sources to evaluate on; None: the run's own.
        """
        return self._parts_of(run, data)[1]

    def _parts_of(self, run: Run[Any], data: Files | None) -> tuple[Any, Any]:
        """Training part of the run, if it is at hand, and the examples to evaluate on."""
        if not data and not self.options.data:
            raise NotSupported(f"{run.folder} was imported and has no data of its own; name some with --data")
        if not data:
            try:
                own = self.prepare(self.read(), run.folder)
            except MissingFile as wrong:
                raise MissingFile(
                    f"{run.folder} was trained on {show_files(self.options.data)}, which no longer exists; name other data with --data"
                ) from wrong
            if run.config.digest not in (None, own.digest):  # the test part may hold what was trained on
                raise NotSupported(
                    f"the data of {run.folder} has changed since it was trained, and its test part may now hold examples that it was "
                    "trained on; name data that it has not seen with --data"
                )
            train, part = own.train, own.test
        else:
            other = type(self)(self.options.whole(data), self.processor)
            with TemporaryDirectory() as cache:  # memory-mapped files stay readable after their removal
                whole = other.prepare(other.read(), Path(cache))
            train, part = self._trained_on(run), whole.train
            if len(whole.skipped):
                print(whole.skipped, file=sys.stderr)
        if not len(part):
            raise NotSupported(f"{show_files(data) if data else 'the test part of this run'} is empty; name data with --data")
        return train, part

    def _trained_on(self, run: Run[Any]) -> Any:
        """Training part of the run's own data; None if that has gone or changed, or if the task has no baselines to fit to it."""
        if type(self).baselines is Task.baselines or not self.options.data:
            return None
        try:
            own = self.prepare(self.read(), run.folder)
        except RegardError:
            return None
        return own.train if run.config.digest == own.digest else None

    def test_name(self, data: Files | None) -> str:
        """Name of `test_data`.

        Args:
            data: sources to evaluate on; None: the run's own.
        """
        return show_files(data) if data else f"test part of {show_files(self.options.test or self.options.data)}"


def show_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics in words."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


KINDS = {
    "Translator": "translator",
    "CopyModel": "summarizer",
    "LanguageModel": "causal language model",
    "TextModel": "sentence encoder",
    "TextEncoder": "text encoder",
    "Classifier": "classifier",
    "Reader": "extractive QA model",
    "ImageTransformer": "autoregressive image model",
    "ImageEncoder": "image classifier",
    "ViViT": "video classifier",
    "SetTransformer": "model of sets",
    "ProcessModel": "neural process",
    "GraphModel": "graph network",
}


def words_for(kind: type[Model]) -> str:
    """A kind of model in words."""
    return KINDS.get(kind.__name__, kind.__name__)

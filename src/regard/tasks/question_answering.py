"""Question answering: find the answer to a question in a passage, as a span of it, or say that there is none.

A reader (`models.Reader`) gives every token of the passage a probability of being the first and the last of the answer. It is SAN, or a span
head over an encoder, new or pretrained. Long passages are read in windows. With `--also`, batches of further data sets are mixed in, as in
MT-SAN: each epoch has all batches of --data and, for each, `--also-ratio` batches of the others (Xu et al. 2019, arXiv:1809.06963, algorithm 1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import nn

from ..data.batches import Numbers, similar_lengths
from ..data.examples import Examples
from ..data.questions import Question, read_questions
from ..errors import BadConfig
from ..files import read
from ..look import Indices, Layers, Maps
from ..models import Model, Reader, SpanReader, TextEncoder, body_of, build, find_model
from ..models._reader import NEVER
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._answer_maps import answer_maps
from ._base import Dataset, Example, Prediction, Report, Task, check_range, digest, require_parts
from ._options import Files, VectorOptions, absolute_files
from ._processor import TextProcessor
from ._squad import best_threshold, score_answers, sliding_window
from ._windows import Answers, WindowBatch, Windows, collate, encode_questions, expressible, find_answers, span_loss
from .classification import one_file

SMALL = 20_000  # questions: below, a model half as wide makes several times the steps in the same time
RULES = "exact_match and f1 by SQuAD's rules, which are made for English: articles a, an, the; words separated by white space"


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringOptions(VectorOptions):
    """Data, vocabulary and windows."""

    data: Files = "facts:"
    """SQuAD 1.1 or 2.0 (.json); .jsonl, .parquet, hf:FOLDER with context, question, answers; facts:, generated (all also .gz, .xz)."""
    also: tuple[str, ...] = ()
    """Further data to train on; validation and test are those of --data."""
    also_ratio: float = 0.5
    """Batches of --also per batch of --data."""
    max_length: int = 384
    """Maximum number of tokens of question and passage together; longer passages are read in windows."""
    stride: int = 128
    """Tokens from the beginning of a window to that of the next."""
    max_answer: int = 30
    """Maximum number of tokens of an answer."""
    batch_size: int = 32
    """Windows per batch."""

    def __post_init__(self) -> None:
        check_range(
            self,
            also_ratio=(self.also_ratio >= 0, "0 or more"),
            max_length=(self.max_length >= 8, "8 or more"),
            stride=(self.stride >= 1, "1 or more"),
            max_answer=(self.max_answer >= 1, "1 or more"),
            batch_size=(self.batch_size >= 1, "1 or more"),
        )

    def whole(self, data: Files) -> Self:
        return replace(super().whole(data), also=())

    def absolute(self) -> Self:
        return replace(super().absolute(), also=tuple(str(absolute_files(one)) for one in self.also))


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions:
    """When there is no answer."""

    threshold: float | None = None
    """A question has no answer if log p(no answer) − log p(best span) is above it; that of the run, tuned on validation, if not given."""

    def of(self, model: Reader) -> float:
        return float(model.threshold) if self.threshold is None else self.threshold


@dataclass(frozen=True, kw_only=True)
class PassageOptions(ThresholdOptions):
    """Where the passage comes from."""

    context: Path | None = None
    """Text file with the passage; without it, an input is a question, a tab and the passage."""

    def questions(self, inputs: Sequence[str]) -> list[Question]:
        """The inputs as questions with their passages."""
        passage = None if self.context is None else _passage(self.context)
        found = []
        for number, line in enumerate(inputs):
            text, tab, context = (line, "\t", passage) if passage is not None else line.partition("\t")
            if not tab or not context.strip() or not text.strip():
                raise BadConfig(
                    f"{line[:40]!r} is not a question, a tab and a passage; give a file with the passage: --context passage.txt"
                )
            found.append(Question(str(number), text, context, ()))
        return found


@dataclass(frozen=True, kw_only=True)
class AnswersOptions(PassageOptions):
    """What to answer."""

    nbest: int = 1
    """Answers per question, most likely first, with their probabilities."""


@dataclass(frozen=True)
class MixedDataset(Dataset[list[Question]]):
    """With the questions of --also."""

    also: tuple[list[Question], ...] = ()


@dataclass(frozen=True)
class MixedExamples(Examples[Question]):
    also: tuple[list[Question], ...] = field(default=())


class QuestionAnswering(Task[QuestionAnsweringOptions]):
    """Train a model that finds the answer to a question in a passage.

    As in:  regard train question-answering --out runs/facts --minutes 5
            regard train question-answering --data train-v2.0.json --valid dev-v2.0.json --model bert --init-from runs/bert --out runs/squad
            regard predict runs/squad --context article.txt "Who wrote it?"
    """

    name = "question-answering"
    Options = QuestionAnsweringOptions
    EvaluateOptions = ThresholdOptions
    PredictOptions = AnswersOptions
    LookOptions = PassageOptions
    model_kind = Reader
    body_kinds: ClassVar[tuple[type[Model], ...]] = (Reader, TextEncoder)
    length_option = "max_length"
    default_model = "san"
    small = False  # little data, as `settle` finds
    default_train = TrainOptions(epochs=3, optimizer="muon", lr=0.01, schedule="cosine", warmup_steps=None, average=0)
    next_commands = (
        'regard evaluate {out}        regard predict {out} --context passage.txt "…"        regard look {out} --context passage.txt "…"'
    )

    # -- training ------------------------------------------------------------------------------------------------------

    @classmethod
    def train_defaults(cls, model: str) -> TrainOptions:
        """SAN learns from scratch; an encoder is fine-tuned."""
        if issubclass(find_model(model), Reader):
            return cls.default_train
        return TrainOptions(epochs=3, lr=3e-4, schedule="linear", warmup_steps=None, average=0)

    def read(self) -> MixedExamples:
        o = self.options
        own = read_questions(one_file(o.data), **o.parts())
        others = [read_questions(one, on_error=o.on_error, shares=(0.0, 0.0)) for one in o.also]
        for other in others:
            own.skipped.add(other.skipped)
        return MixedExamples(own.train, own.valid, own.test, own.skipped, tuple(other.train for other in others))

    def make_processor(self, raw: MixedExamples, base: TextProcessor | None) -> TextProcessor:
        if base is not None:
            return TextProcessor(self.options.tokenizers_from(base.tokenizers))
        questions = [one for part in (raw.train, *raw.also) for one in part]
        texts = [*dict.fromkeys(one.context for one in questions), *(one.text for one in questions)]
        return TextProcessor(self.options.tokenizers_of(texts))

    def encode(self, raw: MixedExamples, processor: TextProcessor, cache: Path) -> MixedDataset:
        parts = (raw.train, raw.valid, raw.test, *raw.also)
        skipped = str(raw.skipped) if len(raw.skipped) else ""
        fingerprint = digest(repr(tuple(one)) for part in parts for one in part)
        return MixedDataset(raw.train, raw.valid, raw.test, fingerprint, skipped, "questions", raw.also)

    def settle(self, dataset: Dataset[Any]) -> Self:
        decided = type(self)(self.options)
        decided.small = len(dataset.train) < SMALL
        return decided

    def size_settings(self, model: str) -> dict[str, Any]:
        sizes = {"san": {"embedding": 64, "width": 64}, "bert": {"width": 128, "hidden": 512, "depth": 2}}
        return sizes.get(model, {}) if self.small else {}

    def model_settings(self, model: str, processor: TextProcessor) -> dict[str, Any]:
        return {**super().model_settings(model, processor), **self.options.vector_settings(model)}

    def initialise(self, body: Model, processor: TextProcessor) -> None:
        self.options.set_embeddings(body, processor.tokenizer)

    def adapt(self, body: Model, processor: TextProcessor) -> Reader:
        body = body_of(body)
        return body if isinstance(body, Reader) else SpanReader(body)

    def build(self, model: str, settings: Mapping[str, Any], processor: TextProcessor) -> Reader:
        return self.adapt(build(model, settings), processor)

    def objective(self, dataset: Dataset[Any], processor: TextProcessor, model: Model, seed: int) -> ReadingObjective:
        assert isinstance(model, Reader) and isinstance(dataset, MixedDataset)
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "questions")
        train, valid, *also = (self.windows(model, processor, part) for part in (dataset.train, dataset.valid, *dataset.also))
        return ReadingObjective(train, valid, dataset.valid, also, self.options, seed)

    def windows(self, model: Reader, processor: TextProcessor, questions: Sequence[Question]) -> Windows:
        return encode_questions(questions, processor.tokenizer, min(self.options.max_length, model.max_length), self.options.stride)

    # -- use -----------------------------------------------------------------------------------------------------------

    def answers(self, run: Run[Reader], questions: Sequence[Question], count: int = 1) -> tuple[list[Answers], float, Windows]:
        """The best spans for each question, the loss, and the windows that were read."""
        windows = self.windows(run.model, run.processor, questions)
        found, loss = find_answers(
            run.model, windows, questions, longest=self.options.max_answer, count=count, batch_size=self.options.batch_size
        )
        return found, loss, windows

    def evaluate(self, run: Run[Reader], data: Files | None, options: ThresholdOptions) -> Report:
        questions: list[Question] = self.test_data(run, data)
        found, loss, windows = self.answers(run, questions)
        threshold = options.of(run.model)
        best = [one.best(threshold) for one in found]
        texts = ["" if answer is None else answer.text for answer in best]
        metrics = {"loss": loss, **score_answers(texts, questions)}
        baseline = score_answers([sliding_window(one.text, one.context) for one in questions], questions)
        limit = score_answers(expressible(questions, windows), questions)
        named = {"this run": metrics, "sliding window, no model": baseline, "best spans of whole tokens": limit}
        count = (
            f"{self.test_name(data)}: {len(questions):,} questions, {len(windows):,} windows of at most {self.options.max_length} tokens"
        )
        rule = "every question is answered" if threshold >= NEVER else f"no answer above a threshold of {threshold:.3g}"
        return Report(
            metrics=metrics,
            notes=(f"{count}; {rule}", RULES),
            columns=("", "exact_match", "f1"),
            rows=[(name, each["exact_match"], each["f1"]) for name, each in named.items()],
            details={"data": self.test_name(data), "questions": len(questions), "windows": len(windows), "threshold": threshold},
            outputs=[f"{one.id}\t{' '.join(text.split())}" for one, text in zip(questions, texts, strict=True)],
        )

    def predict(self, run: Run[Reader], inputs: Sequence[str], options: AnswersOptions) -> list[Prediction]:
        """An input is a question, a tab and a passage; with --context a question."""
        found, _, _ = self.answers(run, options.questions(inputs), options.nbest)
        return [_prediction(one, options.of(run.model), options.nbest) for one in found]

    def attention_maps(self, run: Run[Reader], text: str, layers: Layers, heads: Indices, options: PassageOptions) -> tuple[str, Maps]:
        """Attention between question and passage in the window that holds the answer, and where each step says it starts and ends."""
        (question,) = options.questions([text])
        (found,), _, windows = self.answers(run, [question])
        best = found.best(options.of(run.model))
        maps = answer_maps(run.model, run.processor.tokenizer, windows, best, layers, heads)
        if best is None:
            return f"no answer, with probability {np.exp(found.no_answer):.4f}", maps
        around = f"{question.context[: best.start]}[{best.text}]{question.context[best.end :]}"
        return f"{best.text}, with probability {np.exp(best.log_p):.4f}\n{around}", maps

    @classmethod
    def example(cls, folder: Path) -> Example:
        path = folder / "questions.jsonl"
        rows = []
        for n in range(60):
            context = f"the box is {('red', 'blue')[n % 2]} and the cup is {n}"
            answer, asked = (str(n), "cup") if n % 3 else (("red", "blue")[n % 2], "box")
            start = context.rindex(answer) if n % 3 else context.index(answer)
            rows.append({"id": n, "context": context, "question": f"the {asked}?", "answers": {"text": [answer], "answer_start": [start]}})
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        broken = '{"id": 99, "context": "here", "question": "where?", "answers": {"text": ["there"], "answer_start": [0]}}\n'
        options = QuestionAnsweringOptions(data=str(path), tokenizer="word", vocab_size=100, max_length=16, stride=4, batch_size=8)
        settings = {"embedding": 8, "width": 6, "steps": 2}
        return Example(options=options, settings=settings, input="the box?\tthe box is red and the cup is 7", broken=broken)


def _passage(path: Path) -> str:
    """The text of a file."""
    try:
        text = read(path).decode()
    except UnicodeDecodeError as wrong:
        raise BadConfig(f"--context {path}: not UTF-8 text ({wrong}); convert the file") from wrong
    if not text.strip():
        raise BadConfig(f"--context {path}: the file is empty; expected a passage")
    return text


def _prediction(found: Answers, threshold: float, nbest: int) -> Prediction:
    """answer, probability and characters, a line per answer; JSON has the text as it is in the passage."""
    listed: list[dict[str, Any]] = [
        {"answer": one.text, "probability": float(np.exp(one.log_p)), "start": one.start, "end": one.end} for one in found.spans
    ]
    nothing = {"answer": "", "probability": float(np.exp(found.no_answer)), "start": None, "end": None}
    if found.best(threshold) is None:
        listed = [nothing, *listed][:nbest]
    lines = [
        f"{' '.join(one['answer'].split())}\t{one['probability']:.4f}\t{one['start']}:{one['end']}"
        if one["answer"]
        else f"(no answer)\t{one['probability']:.4f}"
        for one in listed
    ]
    return Prediction("\n".join(lines), {**listed[0], **({"answers": listed} if nbest > 1 else {})})


class ReadingObjective:
    """What the training loop asks. An item is the number of a data set and rows of it: a batch has one data set."""

    unit = "windows"
    metric = Metric("f1", higher=True)

    def __init__(
        self,
        train: Windows,
        valid: Windows,
        questions: Sequence[Question],
        also: Sequence[Windows],
        options: QuestionAnsweringOptions,
        seed: int = 0,
    ):
        self.train, self.valid, self.questions, self.also, self.options, self.seed = train, valid, questions, also, options, seed

    def batches(self, epoch: int) -> Sequence[tuple[int, Numbers]]:
        """All batches of the data, and of the others `also_ratio` times as many, drawn from all of them; in random order."""
        generator, size = np.random.default_rng([self.seed, epoch]), self.options.batch_size
        own = [(0, rows) for rows in similar_lengths(self.train.ids.lengths, size, generator)]
        others = [(n, rows) for n, windows in enumerate(self.also, 1) for rows in similar_lengths(windows.ids.lengths, size, generator)]
        more = round(self.options.also_ratio * len(own)) if others else 0
        chosen = [others[n] for n in generator.permutation(len(others))]
        mixed = own + [chosen[n % len(chosen)] for n in range(more)]
        return [mixed[n] for n in generator.permutation(len(mixed))]

    def batch(self, item: tuple[int, Numbers]) -> WindowBatch:
        number, rows = item
        return collate((self.train, *self.also)[number], rows)

    def loss(self, model: nn.Module, batch: WindowBatch) -> Loss:
        reading = model(batch.ids_BL, batch.n_B, batch.segment_BL)
        right_B = (reading.start_BL.argmax(1) == batch.start_B) & (reading.end_BL.argmax(1) == batch.end_B)
        return Loss(span_loss(reading.start_BL, reading.end_BL, batch), len(batch.ids_BL), {"spans_right": float(right_B.sum())})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """On validation; the threshold that is best there becomes the model's."""
        assert isinstance(model, Reader)
        o = self.options
        found, loss = find_answers(model, self.valid, self.questions, longest=o.max_answer, batch_size=o.batch_size)
        spans = [one.spans[0].text if one.spans else "" for one in found]
        threshold = best_threshold([one.margin for one in found], spans, self.questions, NEVER)
        model.threshold.fill_(threshold)
        chosen = [one.best(float(model.threshold)) for one in found]
        return {"loss": loss, **score_answers(["" if one is None else one.text for one in chosen], self.questions)}

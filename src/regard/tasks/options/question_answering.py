"""Options of the task question_answering: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta

from ...bounds import Bounded, NonNegative, Size
from ...train.options import TrainOptions
from .shared import Declaration, Files, VectorOptions, absolute_files


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringOptions(VectorOptions):
    """Data, vocabulary and windows."""

    data: Files = "facts:"
    """SQuAD 1.1 or 2.0 (.json); .jsonl, .parquet, hf:FOLDER with context, question, answers; facts:, generated (all also .gz, .xz)."""
    also: tuple[str, ...] = ()
    """Further data to train on; validation and test are those of --data."""
    also_ratio: NonNegative = 0.5
    """Batches of --also per batch of --data."""
    max_length: Annotated[int, Meta(ge=8)] = 384
    """Maximum number of tokens of question and passage together; longer passages are read in windows."""
    stride: Size = 128
    """Tokens from the beginning of a window to that of the next."""
    max_answer: Size = 30
    """Maximum number of tokens of an answer."""
    batch_size: Size = 32
    """Windows per batch."""

    def whole(self, data: Files) -> Self:
        return replace(super().whole(data), also=())

    def absolute(self) -> Self:
        return replace(super().absolute(), also=tuple(str(absolute_files(one)) for one in self.also))


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions(Bounded):
    """Threshold of no answer."""

    threshold: float | None = None
    """A question has no answer if log p(no answer) − log p(best span) is above it; that of the run, tuned on validation, if not given."""


@dataclass(frozen=True, kw_only=True)
class PassageOptions(ThresholdOptions):
    """Passage."""

    context: Path | None = None
    """Text file with the passage; without it, an input is a question, a tab and the passage."""


@dataclass(frozen=True, kw_only=True)
class AnswersOptions(PassageOptions):
    """Answers."""

    nbest: Size = 1
    """Answers per question, most likely first, with their probabilities."""


class QuestionAnsweringDeclaration(Declaration):
    """Train an extractive question-answering model: it finds the answer in a passage.

    As in:  regard train question-answering --out runs/facts --minutes 5
            regard train question-answering --data train-v2.0.json --valid dev-v2.0.json --model bert --init-from runs/bert --out runs/squad
            regard predict runs/squad --context article.txt "Who wrote it?"
    """

    name = "question-answering"
    Options = QuestionAnsweringOptions
    EvaluateOptions = ThresholdOptions
    PredictOptions = AnswersOptions
    LookOptions = PassageOptions
    default_model = "san"
    default_train = TrainOptions(epochs=3, optimizer="muon", lr=0.01, schedule="cosine", warmup_steps=None, average=0)
    main_options = ("max_length",)

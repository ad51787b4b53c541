"""Question answering: find the answer to a question in a passage, as a span of it, or say that there is none.

A reader (`models.Reader`) gives every token of the passage a probability of being the first and the last of the answer. It is SAN, or a span
head over an encoder, new or pretrained. Long passages are read in windows. With `--also`, batches of further data sets are mixed in, as in
MT-SAN: each epoch has all batches of --data and, for each, `--also-ratio` batches of the others (Xu et al. 2019, arXiv:1809.06963, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from ..data import Skipped, Splits
from ..data.batches import Numbers, similar_lengths
from ..data.questions import Question, read_questions
from ..data.splits import content_of, digest
from ..look import Indices, Layers, Maps
from ..metrics.squad import best_threshold, score_answers, sliding_window
from ..models import Model, Reader, SpanReader, TextEncoder, body_of, find_model
from ..models.reader import NEVER
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from .answer_maps import answer_maps
from .dial import Profile, mean_words
from .measuring import answer
from .options.question_answering import (
    AnswersOptions,
    PassageOptions,
    QuestionAnsweringDeclaration,
    QuestionAnsweringOptions,
    ThresholdOptions,
)
from .question_lines import answers_as_lines, questions_of
from .span_encoding import (
    Answers,
    WindowAnswer,
    WindowBatch,
    Windows,
    collate,
    encode_questions,
    expressible,
    join_windows,
    span_loss,
    window_answers,
)
from .task import InputField, Prediction, Report, Start
from .text import TokensTask
from .text_processor import TextProcessor
from .vocabulary import set_embeddings, tokenizers_from, tokenizers_of, vector_settings

RULES = "exact_match and f1 by SQuAD's rules, which are made for English: articles a, an, the; words separated by white space"


class Mixed(list[Question]):
    """Questions of --data, with those of each of --also."""

    also: tuple[list[Question], ...] = ()


class QuestionAnswering(QuestionAnsweringDeclaration, TokensTask[QuestionAnsweringOptions]):
    unit = "questions"
    loss_unit = "windows"
    model_kind = Reader
    body_kinds: ClassVar[tuple[type[Model], ...]] = (Reader, TextEncoder)
    length_option = "max_length"
    small = 20_000  # a model half as wide makes several times the steps in the same time
    small_sizes = {"san": {"embedding": 64, "width": 64}, "bert": {"width": 128, "hidden": 512, "depth": 2}}  # noqa: RUF012
    metric = Metric("f1", higher=True)
    next_commands = (
        'regard evaluate {out}        regard predict {out} --context passage.txt "…"        regard look {out} --context passage.txt "…"'
    )
    nbest = 1  # spans per window that are kept

    @classmethod
    def train_defaults(cls, model: str) -> TrainOptions:
        """SAN learns from scratch; an encoder is fine-tuned."""
        if issubclass(find_model(model), Reader):
            return cls.default_train
        return TrainOptions(epochs=3, lr=3e-4, schedule="linear", warmup_steps=None, average=0)

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[list[Question]]:
        o = self.options
        files = {name: o.one_file(name) for name in ("valid", "test")}
        own = read_questions(str(o.one_file("data")), **o.parts() | files)
        others = [read_questions(one, on_error=o.on_error, shares=(0.0, 0.0)) for one in o.also]
        train = Mixed(own.train)
        train.also = tuple(other.train for other in others)
        for other in others:
            assert isinstance(own.skipped, Skipped) and isinstance(other.skipped, Skipped)
            own.skipped.add(other.skipped)
        parts = (own.train, own.valid, own.test, *train.also)
        return replace(own, train=train, digest=digest(content_of(one) for part in parts for one in part))

    def profile(self, data: Splits[list[Question]]) -> Profile:
        return {"examples": len(data.train), "words": mean_words(data.train, lambda one: (one.context,))}

    def make_processor(self, data: Splits[list[Question]], base: TextProcessor | None) -> TextProcessor:
        if base is not None:
            return TextProcessor(tokenizers_from(self.options, base.tokenizers))
        questions = [one for part in (data.train, *_also(data.train)) for one in part]
        texts = [*dict.fromkeys(one.context for one in questions), *(one.text for one in questions)]
        return TextProcessor(tokenizers_of(self.options, texts))

    def encode(self, examples: Sequence[Question], model: Model) -> Windows:
        length = min(self.options.max_length, model.max_length)
        own, *also = (
            encode_questions(part, self.processor.tokenizer, length, self.options.stride) for part in (examples, *_also(examples))
        )
        return replace(own, also=tuple(also))

    def lengths(self, rows: Windows) -> Numbers:
        return rows.ids.lengths

    def plan(self, rows: Windows, epoch: int | None, seed: int = 0) -> Sequence[tuple[Windows, Numbers]]:
        """All batches of the data, and of --also `also_ratio` times as many, drawn from all of them; in random order."""
        if epoch is None or not rows.also:
            return super().plan(rows, epoch, seed)
        generator, size = np.random.default_rng([seed, epoch]), self.options.batch_size
        own, *others = ([(some, n) for n in similar_lengths(some.ids.lengths, size, generator)] for some in (rows, *rows.also))
        more = [one for part in others for one in part]
        chosen = [more[n] for n in generator.permutation(len(more))]
        mixed = own + [chosen[n % len(chosen)] for n in range(round(self.options.also_ratio * len(own)))]
        return [mixed[n] for n in generator.permutation(len(mixed))]

    def batch(self, item: tuple[Windows, Numbers], generator: torch.Generator | None) -> WindowBatch:
        return collate(*item)

    # -- model and loss ------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        return {**super().settings(model, data), **vector_settings(self.options, model)}

    def adapt(self, body: Model, data: Splits[Any] | None = None, start: Start = "loaded") -> Reader:
        body = body_of(body)
        if start == "new":
            set_embeddings(self.options, body, self.processor.tokenizer)
        return body if isinstance(body, Reader) else SpanReader(body)

    def loss(self, model: Reader, batch: WindowBatch) -> Loss:
        reading = model(batch.ids_BL, batch.n_B, batch.segment_BL)
        right_B = (reading.start_BL.argmax(1) == batch.start_B) & (reading.end_BL.argmax(1) == batch.end_B)
        total = span_loss(reading.start_BL, reading.end_BL, batch)
        return Loss(total, len(batch.ids_BL), {"spans_right": right_B.sum()}, (reading.start_BL, reading.end_BL, model.threshold))

    # -- answers -------------------------------------------------------------------------------------------------------

    def answers(self, outputs: Any, batch: WindowBatch) -> list[WindowAnswer]:
        return window_answers(*outputs, longest=self.options.max_answer, count=self.nbest)

    def merge(self, answers: list[WindowAnswer], rows: Windows, examples: Sequence[Question]) -> list[Answers]:
        """The best spans of each question over all its windows."""
        return join_windows(answers, rows, examples, self.nbest)

    def calibrate(self, model: Reader, answers: list[Answers], examples: Sequence[Question]) -> list[Answers]:
        """Answers with the threshold that is best on these questions, which becomes the model's."""
        spans = [one.spans[0].text if one.spans else "" for one in answers]
        threshold = best_threshold([one.margin for one in answers], spans, golds(examples), NEVER)
        model.threshold.fill_(threshold)
        return [replace(one, threshold=float(model.threshold)) for one in answers]

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Answers], examples: Sequence[Question]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["count"], **score_answers([one.text for one in answers], golds(examples))}

    def report(
        self, sums: Mapping[str, float], answers: Sequence[Answers], examples: Sequence[Question], options: ThresholdOptions
    ) -> Report:
        """Beside a baseline without a model, and the best that spans of whole tokens can reach."""
        answers = [one.with_threshold(options.threshold) for one in answers]
        metrics, right, threshold = self.metrics(sums, answers, examples), golds(examples), answers[0].threshold
        baseline = score_answers([sliding_window(one.text, one.context) for one in examples], right)
        limit = score_answers(expressible(examples, self.processor.tokenizer), right)
        named = {"this run": metrics, "sliding window, no model": baseline, "best spans of whole tokens": limit}
        rule = "every question is answered" if threshold >= NEVER else f"no answer above a threshold of {threshold:.3g}"
        windows = int(sums["count"])
        return Report(
            metrics=metrics,
            notes=(f"{windows:,} windows of at most {self.options.max_length} tokens; {rule}", RULES),
            columns=("", "exact_match", "f1"),
            rows=[(name, each["exact_match"], each["f1"]) for name, each in named.items()],
            details={"windows": windows, "threshold": threshold},
            outputs=[f"{one.id}\t{' '.join(found.text.split())}" for one, found in zip(examples, answers, strict=True)],
        )

    def parse(self, text: str) -> Question:
        return questions_of(PassageOptions(), [text])[0]

    def fields(self, model: Model) -> tuple[InputField, ...]:
        return InputField("Question"), InputField("Passage")

    def input_text(self, example: Question) -> str:
        return f"{example.text}\t{example.context}"

    def predict(self, run: Run[Reader], inputs: Sequence[str], options: AnswersOptions) -> list[Prediction]:
        """An input is a question, a tab and a passage; with --context a question."""
        self.nbest = options.nbest
        found = answer(self, run.model, questions_of(options, inputs), options)
        return [answers_as_lines(one.with_threshold(options.threshold), options.nbest) for one in found]

    def attention_maps(self, run: Run[Reader], text: str, layers: Layers, heads: Indices, options: PassageOptions) -> tuple[str, Maps]:
        """Attention between question and passage in the window that holds the answer, and where each step says it starts and ends."""
        questions = questions_of(options, [text])
        found = answer(self, run.model, questions, options)[0].with_threshold(options.threshold)
        best, context = found.best, questions[0].context
        maps = answer_maps(run.model, run.processor.tokenizer, self.encode(questions, run.model), best, layers, heads)
        if best is None:
            return f"no answer, with probability {np.exp(found.no_answer):.4f}", maps
        around = f"{context[: best.start]}[{best.text}]{context[best.end :]}"
        return f"{best.text}, with probability {np.exp(best.log_p):.4f}\n{around}", maps


def _also(examples: Sequence[Question]) -> tuple[list[Question], ...]:
    return examples.also if isinstance(examples, Mixed) else ()


def golds(questions: Sequence[Question]) -> list[list[str]]:
    """Gold answers of each question."""
    return [[span.text for span in one.answers] for one in questions]

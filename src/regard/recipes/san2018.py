"""A reader finds the answer because the passage is read with the question in view, and start and end are chosen together.

Paper: Liu et al. 2018, "Stochastic answer networks for machine reading comprehension", arXiv:1712.03556 (there SQuAD: EM 76.2, F1 84.1; here
       generated facts).
Run:   regard run san2018        Takes: about six minutes on one CPU core; three seeds of four small models.

Passages of six facts, three about each of two people, in random order; a question names a person and paraphrases a fact. The ablations: SAN
without the aligned question embedding and the exact-match feature of its input (the attention of its memory stays), one step instead of
five, and questions that say nothing. The baseline has no model: of all answers of the training data that the passage holds, it takes the
one whose sentence has most of the question's words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .. import tasks
from .._extras import extra
from ..data.questions import Question
from ..data.splits import Splits
from ..look import Map
from ..metrics.squad import score_answers, sliding_window
from ..models import Reader
from ..runs import Run
from ..tasks import QuestionAnswering, QuestionAnsweringOptions
from ..tasks.question_answering import PassageOptions, ThresholdOptions, golds
from ..tasks.span_encoding import collate, mask_first
from ..train import TrainOptions
from ._engine import Recipe, RecipeFacts, Results, above, at_least, at_most, variant_folder
from ._engine.variants import short_training, train_run

OPTIONS = QuestionAnsweringOptions(data="facts:count=2500", tokenizer="word", max_length=160, shares=(0.04, 0.1))
TRAIN = short_training(150, 0.02, evaluations=3)
SIZE: dict[str, Any] = {"embedding": 48, "width": 48}
SAN, ONE, PLAIN, BLIND, WORDS = "SAN, 5 steps", "1 step", "without alignment and match", "question-blind", "words in common"


class BlindQuestionAnswering(QuestionAnswering):
    """Question answering with one question for every passage."""

    def read(self) -> Splits[list[Question]]:
        found = super().read()
        train, valid, test = ([one._replace(text="?") for one in part] for part in found.parts)
        return replace(found, train=train, valid=valid, test=test)


@dataclass(frozen=True, kw_only=True)
class ReaderVariant:
    """A reader trained from scratch: exact match and F1 on the test part, by the best span and by the best start and the best end."""

    task: type[QuestionAnswering] = QuestionAnswering
    train: TrainOptions = TRAIN
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        run, training = train_run(self.task, OPTIONS, self.train.replace(seed=seed), out, settings=SIZE | self.settings)
        task = self.task(OPTIONS, run.processor)
        joint = task.evaluate(run, None, ThresholdOptions())
        empty = sum(line.endswith("\t") for line in joint.outputs) / len(joint.outputs)
        apart, without = independent(task, run)
        return {**joint.metrics, "empty": empty, "independent exact_match": apart, "independent empty": without, **training}


@torch.no_grad()
def independent(task: QuestionAnswering, run: Run[Reader]) -> tuple[float, float]:
    """Exact match if start and end are chosen one by one, and the share of questions for which they are not a span."""
    questions = task.test_data(run, None)
    windows = task.encode(questions, run.model)
    texts = []
    for at in range(0, len(windows), 32):
        rows = torch.arange(at, min(at + 32, len(windows))).numpy()
        batch = collate(windows, rows)
        reading = run.model(batch.ids_BL, batch.n_B, batch.segment_BL)
        firsts, lasts = (mask_first(log_p_BL).argmax(1).tolist() for log_p_BL in reading)
        for row, first, last in zip(rows.tolist(), firsts, lasts, strict=True):
            number, shift = int(windows.question_W[row]), int(windows.first_W[row] - windows.asked_W[row])
            offsets = windows.offsets[number]
            texts.append(questions[number].context[offsets[first + shift, 0] : offsets[last + shift, 1]] if first <= last else "")
    return score_answers(texts, golds(questions))["exact_match"], sum(not text for text in texts) / len(texts)


@dataclass(frozen=True)
class WordsVariant:
    """The sliding window over answers of the training part; it has no seed."""

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        data = QuestionAnswering(OPTIONS).read()
        known = {span.text.lower() for one in data.train for span in one.answers}
        return score_answers([sliding_window(one.text, one.context, known) for one in data.test], golds(data.test))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Start and end of the answer by each step, and the attention of the passage to the question: one test question."""

    variant: str

    def __call__(self, results: Results, out: Path) -> Path:
        run = tasks.load_run(variant_folder(out, self.variant, results.seeds[0]), Reader)
        task = QuestionAnswering(OPTIONS, run.processor)
        one = task.test_data(run, None)[0]
        said, maps = task.attention_maps(run, f"{one.text}\t{one.context}", None, None, PassageOptions())
        figure = draw(maps["alignment"][0], maps["answer"][0], f"{one.text}  →  {said.splitlines()[0]}")
        figure.savefig(out / "steps.png", dpi=150)
        return out / "steps.png"


def draw(attention: Map, answer: Map, title: str) -> Any:
    """Draw under every token of the passage the question words it attends to, and the probability of start and end at each step."""
    with extra("look"):
        from matplotlib.figure import Figure

    (asked,), (passage,), (rows,) = attention.key_labels, answer.key_labels, answer.query_labels
    figure = Figure(figsize=(0.17 * len(passage) + 1.5, 5.5), layout="constrained")
    axes = figure.subplots(2, 1, height_ratios=(len(asked), len(rows)), sharex=True)
    for axis, matrix, names, colours in (
        (axes[0], attention.weights_BHLM[0].mean(0).T, asked, "Purples"),
        (axes[1], answer.weights_BHLM[0, 0], rows, "Greens"),
    ):
        axis.imshow(matrix.numpy(), aspect="auto", cmap=colours, vmin=0)
        axis.set_yticks(range(len(names)), names, fontsize=7)
    axes[1].set_xticks(range(len(passage)), passage, rotation=90, fontsize=7)
    figure.suptitle(title, fontsize=9)
    return figure


recipe = Recipe(
    facts=RecipeFacts(
        "san2018", 2018, "Stochastic answer networks for machine reading comprehension", "arXiv:1712.03556", "about six minutes"
    ),
    question="Does a reader need to see the question while it reads the passage?",
    variants={
        SAN: ReaderVariant(),
        ONE: ReaderVariant(settings={"steps": 1}),
        PLAIN: ReaderVariant(settings={"aligned": False, "exact_match": False}),
        BLIND: ReaderVariant(task=BlindQuestionAnswering),
        WORDS: WordsVariant(),
    },
    claims=(
        at_least("SAN answers at least 95 % exactly after 150 steps", 0.95, (SAN, "exact_match")),
        above("alignment and match feature add at least 5 points", (SAN, "exact_match"), (PLAIN, "exact_match"), 0.05),
        at_most("without a question at most 30 %: one fact of six", 0.3, (BLIND, "exact_match"), kind="control"),
        at_most("words in common with the question answer less than half", 0.5, (WORDS, "exact_match")),
        above("five averaged steps are better than one", (SAN, "exact_match"), (ONE, "exact_match"), source="table 3"),
        above(
            "start and end chosen together: at least as good as one by one",
            (PLAIN, "exact_match"),
            (PLAIN, "independent exact_match"),
            kind="control",
        ),
        at_most("and never without a span", 0.0, (PLAIN, "empty"), kind="control"),
    ),
    pictures=(Steps(variant=SAN),),
)

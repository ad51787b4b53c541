"""Questions with their passages as token ids, in windows; and the best spans of what a reader says about them.

    BOS question EOS passage EOS            if both fit
    BOS question EOS first tokens EOS       else windows of the passage, `stride` tokens apart; each is read on its own
    BOS question EOS  … last tokens EOS

The target of a window that does not hold the whole answer is position 0. A span runs over the tokens i to j with the largest
log p(start = i) + log p(end = j), i ≤ j < i + longest, over all windows; the answer is that slice of the passage, to the character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..data import Ragged, Tokenizer
from ..data.batches import Numbers
from ..data.questions import Question
from ..errors import BadConfig
from ..models.reader import NEVER

MAX_QUESTION = 64  # tokens; a longer one loses its end


@dataclass(frozen=True)
class Windows:
    """Rows of token ids, and of each: the tokens of its question, its target, the number of its question, its first token of the passage."""

    ids: Ragged
    asked_W: Numbers  # tokens of the question, BOS and EOS included: where the passage begins
    start_W: Numbers
    end_W: Numbers
    question_W: Numbers
    first_W: Numbers
    offsets: list[npt.NDArray[np.int64]]  # per question: the characters (first, end) of each token of its passage
    also: tuple[Windows, ...] = ()  # windows of further data sets, for training

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Numbers) -> tuple[Windows, Numbers]:
        """Some windows, for `collate`."""
        return self, index


class WindowBatch(NamedTuple):
    ids_BL: Tensor
    n_B: Tensor
    segment_BL: Tensor
    start_B: Tensor
    end_B: Tensor


def encode_questions(questions: Sequence[Question], tokenizer: Tokenizer, length: int, stride: int) -> Windows:
    """All windows of all questions; a passage that has several questions is tokenized once."""
    passages = dict[str, tuple[list[int], npt.NDArray[np.int64]]]()
    rows: list[list[int]] = []
    facts: list[tuple[int, int, int, int, int]] = []
    offsets = []
    texts = tokenizer.encode_all([one.text for one in questions])
    for number, (question, asked) in enumerate(zip(questions, texts, strict=True)):
        if question.context not in passages:
            ids, spans = tokenizer.encode_with_offsets(question.context)
            passages[question.context] = ids, np.array(spans, dtype=np.int64).reshape(-1, 2)
        ids, span_T2 = passages[question.context]
        head = [tokenizer.begin_id, *asked[: min(MAX_QUESTION, length // 2)], tokenizer.end_id]
        room = length - len(head) - 1
        if room < 1:
            raise BadConfig(f"--max-length {length} leaves no token for the passage; raise it")
        wanted = target_tokens(question, span_T2)
        offsets.append(span_T2)
        for first in window_starts(len(ids), room, stride):
            part = ids[first : first + room]
            inside = wanted is not None and first <= wanted[0] and wanted[1] < first + len(part)
            start, end = (at - first + len(head) for at in wanted) if inside and wanted is not None else (0, 0)
            rows.append([*head, *part, tokenizer.end_id])
            facts.append((len(head), start, end, number, first))
    asked_W, start_W, end_W, question_W, first_W = np.array(facts, dtype=np.int64).reshape(-1, 5).T
    return Windows(Ragged.of(rows), asked_W, start_W, end_W, question_W, first_W, offsets)


def window_starts(tokens: int, room: int, stride: int) -> list[int]:
    """The first token of each window: `stride` apart, at most `room`, so that no token is left out."""
    step = min(stride, room)
    return [0, *range(step, max(tokens - room, 0) + step, step)] if tokens > room else [0]


def target_tokens(question: Question, span_T2: npt.NDArray[np.int64]) -> tuple[int, int] | None:
    """The first and the last token of its first answer; None if there is no answer, or no token of it."""
    if not question.answers:
        return None
    text, start = question.answers[0]
    begin_T, end_T = span_T2.T
    inside = np.flatnonzero((begin_T < start + len(text)) & (end_T > start) & (end_T > begin_T))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def collate(windows: Windows, index: Numbers) -> WindowBatch:
    ids_BL, n_B = windows.ids.padded(index)
    at_L, asked_B1 = torch.arange(ids_BL.shape[1]), torch.from_numpy(windows.asked_W[index])[:, None]
    segment_BL = ((at_L >= asked_B1) & (at_L < n_B[:, None])).long()
    return WindowBatch(ids_BL, n_B, segment_BL, *(torch.from_numpy(x[index]) for x in (windows.start_W, windows.end_W)))


# -- spans -------------------------------------------------------------------------------------------------------------


class Spans(NamedTuple):
    """The best spans of each row, best first: log-probability, first and last token."""

    log_p_BK: Tensor
    first_BK: Tensor
    last_BK: Tensor


def best_spans(start_BL: Tensor, end_BL: Tensor, longest: int, count: int = 1) -> Spans:
    """The `count` spans i..j with the largest start_i + end_j, where i ≤ j < i + longest, out of a band of the L × L pairs."""
    B, L = start_BL.shape
    width = min(longest, L)
    padded = torch.cat([end_BL, end_BL.new_full((B, width - 1), -torch.inf)], 1)
    band_BLA = start_BL[..., None] + padded.unfold(1, width, 1)  # of span i, i + a at [i, a]
    best = band_BLA.flatten(1).topk(min(count, L * width))
    first_BK = best.indices // width
    return Spans(best.values, first_BK, first_BK + best.indices % width)


class Answer(NamedTuple):
    """A span of a passage, by its characters, and its log-probability in its window."""

    text: str
    start: int
    end: int
    log_p: float


@dataclass(frozen=True)
class Answers:
    """The best spans for a question, best first, the log-probability that there is no answer, and the threshold that decides."""

    spans: list[Answer]
    no_answer: float
    threshold: float = NEVER

    @property
    def margin(self) -> float:
        """log p(no answer) − log p(best span)."""
        return self.no_answer - self.spans[0].log_p if self.spans else NEVER

    @property
    def best(self) -> Answer | None:
        """None: no answer. At `NEVER` every question is answered that has a passage."""
        return self.spans[0] if self.spans and (self.threshold >= NEVER or self.margin <= self.threshold) else None

    @property
    def text(self) -> str:
        return "" if self.best is None else self.best.text

    def with_threshold(self, threshold: float | None) -> Answers:
        """Answers with another threshold; None: their own."""
        return self if threshold is None else replace(self, threshold=threshold)


class WindowAnswer(NamedTuple):
    """The best spans of one window, by their tokens, and the log-probability that it has no answer."""

    spans: list[tuple[float, int, int]]  # log-probability, first and last token
    no_answer: float
    threshold: float


def window_answers(start_BL: Tensor, end_BL: Tensor, threshold: Tensor, *, longest: int, count: int = 1) -> list[WindowAnswer]:
    """Answer per window of a batch."""
    nothing = (start_BL[:, 0] + end_BL[:, 0]).tolist()
    found = best_spans(mask_first(start_BL), mask_first(end_BL), longest, count)
    rows = zip(*(x.tolist() for x in found), strict=True)
    return [WindowAnswer(list(zip(*row, strict=True)), none, float(threshold)) for row, none in zip(rows, nothing, strict=True)]


def join_windows(found: Sequence[WindowAnswer], windows: Windows, questions: Sequence[Question], count: int = 1) -> list[Answers]:
    """The best spans of each question over all its windows."""
    spans: list[dict[tuple[int, int], float]] = [{} for _ in questions]
    no_answer = [np.inf] * len(questions)  # the least over the windows: one window with the answer is enough
    threshold = found[0].threshold if found else NEVER
    for row, one in enumerate(found):
        number, shift = int(windows.question_W[row]), int(windows.first_W[row] - windows.asked_W[row])
        no_answer[number] = min(no_answer[number], one.no_answer)
        offsets = windows.offsets[number]
        for log_p, first, last in one.spans:
            if log_p > -np.inf:
                characters = int(offsets[first + shift, 0]), int(offsets[last + shift, 1])
                spans[number][characters] = max(log_p, spans[number].get(characters, -np.inf))
    answers = []
    for question, candidates, nothing_here in zip(questions, spans, no_answer, strict=True):
        ranked = sorted(candidates.items(), key=lambda one: -one[1])
        texts = [Answer(question.context[first:end], first, end, log_p) for (first, end), log_p in ranked if end > first]
        answers.append(Answers(texts[:count], nothing_here, threshold))
    return answers


def span_loss(start_BL: Tensor, end_BL: Tensor, batch: WindowBatch) -> Tensor:
    """−log p(start) − log p(end), summed."""
    return -(start_BL.gather(1, batch.start_B[:, None]) + end_BL.gather(1, batch.end_B[:, None])).sum()


def mask_first(log_p_BL: Tensor) -> Tensor:
    """Without position 0, which stands for no answer."""
    return torch.cat([torch.full_like(log_p_BL[:, :1], -torch.inf), log_p_BL[:, 1:]], 1)


def expressible(questions: Sequence[Question], tokenizer: Tokenizer) -> list[str]:
    """For each question the span of whole tokens nearest to its answer: no reader with this tokenizer can do better."""
    found, passages = [], dict[str, npt.NDArray[np.int64]]()
    for question in questions:
        if question.context not in passages:
            passages[question.context] = np.array(tokenizer.encode_with_offsets(question.context)[1], dtype=np.int64).reshape(-1, 2)
        offsets = passages[question.context]
        tokens = target_tokens(question, offsets)
        found.append("" if tokens is None else question.context[offsets[tokens[0], 0] : offsets[tokens[1], 1]])
    return found

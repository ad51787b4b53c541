"""Questions and answers as lines of text: what `predict` reads and prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.questions import Question
from ..errors import BadConfig
from ..files import read
from .options.question_answering import (
    PassageOptions,
)
from .span_encoding import (
    Answers,
)
from .task import Prediction


def questions_of(options: PassageOptions, inputs: Sequence[str]) -> list[Question]:
    """Read inputs as questions with their passages.

    Args:
        options: options with the file of the passage, if there is one.
        inputs: questions; without a file, each with a tab and its passage.
    """
    passage = None if options.context is None else _passage(options.context)
    found = []
    for number, line in enumerate(inputs):
        text, tab, context = (line, "\t", passage) if passage is not None else line.partition("\t")
        if not tab or not context.strip() or not text.strip():
            raise BadConfig(f"{line[:40]!r} is not a question, a tab and a passage; give a file with the passage: --context passage.txt")
        found.append(Question(str(number), text, context, ()))
    return found


def _passage(path: Path) -> str:
    """The text of a file."""
    try:
        text = read(path).decode()
    except UnicodeDecodeError as wrong:
        raise BadConfig(f"--context {path}: not UTF-8 text ({wrong}); convert the file") from wrong
    if not text.strip():
        raise BadConfig(f"--context {path}: the file is empty; expected a passage")
    return text


def answers_as_lines(found: Answers, nbest: int) -> Prediction:
    """answer, probability and characters, a line per answer; JSON has the text as it is in the passage."""
    listed: list[dict[str, Any]] = [
        {"answer": one.text, "probability": float(np.exp(one.log_p)), "start": one.start, "end": one.end} for one in found.spans
    ]
    nothing = {"answer": "", "probability": float(np.exp(found.no_answer)), "start": None, "end": None}
    if found.best is None:
        listed = [nothing, *listed][:nbest]
    lines = [
        f"{' '.join(one['answer'].split())}\t{one['probability']:.4f}\t{one['start']}:{one['end']}"
        if one["answer"]
        else f"(no answer)\t{one['probability']:.4f}"
        for one in listed
    ]
    return Prediction("\n".join(lines), {**listed[0], **({"answers": listed} if nbest > 1 else {})})

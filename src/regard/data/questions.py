"""Questions about passages, with their answers: SQuAD 1.1 and 2.0, or a question per row.

    read_questions("train-v2.0.json")         SQuAD: articles, paragraphs with a context, questions with answers and where these start
    read_questions("questions.jsonl")         an object per line: context, question, answers, id; as in the `datasets` library
    read_questions("hf:folder")               such a dataset, or a .parquet file
    read_questions("facts:count=500")         generated passages, see `facts`

Files may end in .gz or .xz. A question without answers has none in the passage (SQuAD 2.0). All questions about a passage are in the same
part. Malformed questions stop or are skipped as in `regard.data.read_pairs`: an answer that is not in the passage, an offset at which the
text is another, a question id that was seen before, an empty passage or question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadFile, MissingFile
from ..files import parse_json
from .arrow import is_dataset
from .facts import FACTS, facts, is_facts
from .lines import Fault, Policy, objects, plain_suffix, unwritable, whole_file
from .splits import SHARES, Splits, read_splits

LIMIT = 1 << 27  # bytes of a SQuAD file; SQuAD 2.0 has 42 million
LONGEST = 1 << 22  # bytes of a line of a file of rows
WRITE_ANSWERS = "write answers as SQuAD does, with text and answer_start"


class Span(NamedTuple):
    """An answer: its text, and the character of the passage it starts at."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a passage, and its answers there: several if people disagreed, none if the passage does not say."""

    id: str
    text: str
    context: str
    answers: tuple[Span, ...]


def read_questions(
    path: str | Path, *, valid: str | Path | None = None, test: str | Path | None = None, on_error: Policy = "stop",
    shares: tuple[float, float] = SHARES,
) -> Splits[list[Question]]:  # fmt: skip
    """Questions in three parts; a part without a file is split off by a hash of the passage."""
    return read_splits(_read, path, valid, test, on_error, shares, lambda one: one.context, unit="question")


def _read(path: str | Path) -> Iterator[Question | Fault]:
    """All questions of one source; ids that repeat are faults."""
    seen: set[str] = set()
    for where, found in _questions(path):
        if isinstance(found, Question) and found.id in seen:
            yield Fault(where, "duplicated question id", found.id[:80], "give every question an id of its own")
            continue
        if isinstance(found, Question):
            seen.add(found.id)
        yield found


def _questions(path: str | Path) -> Iterator[tuple[str, Question | Fault]]:
    """(file and question, the question or why it cannot be used)."""
    if is_facts(str(path)):
        for number, fact in enumerate(facts(str(path).partition(":")[2])):
            answers = () if fact.start is None else (Span(fact.answer, fact.start),)
            yield f"{path}, question {number}", Question(f"{FACTS}-{number}", fact.question, fact.context, answers)
    elif is_dataset(path) or plain_suffix(Path(path)) != ".json":
        if not is_dataset(path) and not Path(path).exists():
            raise MissingFile(f"{path}: no such file, and no generated data: that is {FACTS}:count=2000")
        for number, (where, row) in enumerate(objects(path, LONGEST), 1):
            yield where, row if isinstance(row, Fault) else _row(where, row, number)
    else:
        yield from _squad(Path(path))


def _row(where: str, row: Any, number: int) -> Question | Fault:
    """A row of a file of questions."""
    if not isinstance(row, Mapping) or not {"context", "question"} <= row.keys():
        has = ", ".join(map(repr, row))[:200] if isinstance(row, Mapping) else type(row).__name__
        return Fault(where, "no context and question", f"found {has}", "name them context, question, answers and id")
    answers = row.get("answers")
    if isinstance(answers, Mapping):  # of the `datasets` library: lists side by side
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, Sequence) or not isinstance(starts, Sequence) or isinstance(texts, str) or len(texts) != len(starts):
            return Fault(where, "no lists of text and answer_start of the same length", "", WRITE_ANSWERS)
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    return _question(where, row["context"], {"id": str(number), **row, "answers": answers})


def _squad(path: Path) -> Iterator[tuple[str, Question | Fault]]:
    """The questions of a SQuAD file."""
    content = whole_file(path, LIMIT)
    if not content.strip():
        return
    try:
        whole = parse_json(content, path)
    except BadFile as wrong:
        raise BadFile(f"{wrong}; a file with an object per line is called .jsonl") from wrong
    articles = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(articles, list):
        raise BadFile(f'{path}: expected SQuAD, an object with a list of articles in "data"; rows of questions go into a .jsonl file')
    for number, article in enumerate(articles, 1):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        title = str(article.get("title", ""))[:60] if isinstance(article, dict) else ""
        where = f"{path}, article {number}{f' ({title})' if title else ''}"
        if not isinstance(paragraphs, list):
            yield where, Fault(where, "no list of paragraphs", "", 'write {"title": …, "paragraphs": [{"context": …, "qas": […]}]}')
            continue
        for count, paragraph in enumerate(paragraphs, 1):
            here = f"{where}, paragraph {count}"
            asked = paragraph.get("qas") if isinstance(paragraph, dict) else None
            if not isinstance(asked, list):
                yield here, Fault(here, "no list of questions", "", 'write {"context": …, "qas": […]}')
                continue
            for one in asked:
                yield here, _question(here, paragraph.get("context"), one)


def _question(where: str, context: Any, asked: Any) -> Question | Fault:
    """A question with its context, checked."""
    if not isinstance(asked, Mapping) or not isinstance(asked.get("id"), str | int):
        return Fault(where, "question without an id", "", 'write {"id": …, "question": …, "answers": […]}')
    name = str(asked["id"])
    where = f"{where}, question {name[:80]}"
    text, answers = asked.get("question"), asked.get("answers")
    if not isinstance(context, str) or not context.strip():
        return Fault(where, "empty context", "", "write the passage that the question is about")
    if not isinstance(text, str) or not text.strip():
        return Fault(where, "empty question", "", "write the question")
    if wrong := unwritable(where, f"{name} {context} {text}"):
        return wrong
    impossible = asked.get("is_impossible") is True
    answers = [] if answers is None or impossible else answers
    if not isinstance(answers, Sequence) or isinstance(answers, str):
        return Fault(where, "answers are not a list", type(answers).__name__, WRITE_ANSWERS)
    if not answers and asked.get("is_impossible") is False:
        return Fault(where, "no answer", "", "give one, or set is_impossible to true")
    spans: list[Span] = []
    for answer in answers:
        span = _span(where, context, answer)
        if isinstance(span, Fault):
            return span
        spans.append(span)
    return Question(name, text, context, tuple(spans))


def _span(where: str, context: str, answer: Any) -> Span | Fault:
    text, start = (answer.get(key) for key in ("text", "answer_start")) if isinstance(answer, Mapping) else (None, None)
    if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
        return Fault(where, "no text and start of an answer", "", WRITE_ANSWERS)
    if not text.strip():
        return Fault(where, "empty answer", "", "leave the list of answers empty if there is none")
    at = context.find(text)
    if at < 0:
        return Fault(where, "answer is not in the passage", repr(text[:60]), "write it as it is in the context")
    if start < 0 or context[start : start + len(text)] != text:
        instead = f"at {start} is {context[start : start + len(text)][:60]!r}" if 0 <= start < len(context) else "beyond the end"
        return Fault(where, "answer_start does not match", f"{text[:60]!r} is at {at}, {instead}", "count characters from 0")
    return Span(text, start)

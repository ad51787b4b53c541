"""SQuAD files and rows of questions: what is read, what is malformed and where, and generated facts."""

import gzip
import json
import os
from pathlib import Path

import pytest

from regard.data import questions as module
from regard.data.facts import facts
from regard.data.questions import Question, Span, read_questions
from regard.errors import BadFile, MissingFile, NotSupported

DATA = Path(os.environ.get("REGARD_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")
CONTEXT = "Ada lives in Oslo. Ben lives in Lima."


def squad(path, *asked, context=CONTEXT, **more):
    path.write_text(
        json.dumps({"version": "v2.0", "data": [{"title": "Homes", "paragraphs": [{"context": context, "qas": list(asked)}]}], **more})
    )
    return path


def ask(name="q1", text="Oslo", start=13, **more):
    return {"id": name, "question": "Where is Ada?", "answers": [{"text": text, "answer_start": start}], **more}


def all_of(path, **more):
    return read_questions(path, shares=(0.0, 0.0), **more)


def test_squad_1_and_2(tmp_path):
    impossible = {
        "id": "q2",
        "question": "Where is Cleo?",
        "answers": [],
        "is_impossible": True,
        "plausible_answers": [{"text": "Lima", "answer_start": 32}],
    }
    path = squad(tmp_path / "dev.json", ask(), impossible, ask("q3", "Lima", 32, is_impossible=False))
    one, two, three = all_of(path).train
    assert one == Question("q1", "Where is Ada?", CONTEXT, (Span("Oslo", 13),)) and two.answers == () and three.answers[0].text == "Lima"
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert all_of(tmp_path / "dev.json.gz").train == [one, two, three]


def test_rows_as_the_datasets_library_has_them(tmp_path):
    row = {
        "id": "q1",
        "title": "Homes",
        "context": CONTEXT,
        "question": "Where is Ada?",
        "answers": {"text": ["Oslo"], "answer_start": [13]},
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "id": "q2", "answers": {"text": [], "answer_start": []}}) + "\n")
    assert [one.answers for one in all_of(path).train] == [(Span("Oslo", 13),), ()]
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    assert all_of(tmp_path / "rows.parquet").train == all_of(path).train[:1]


def test_questions_about_a_passage_are_in_one_part(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"id": f"{n}-{k}", "context": f"Box {n} is red.", "question": f"{k}?", "answers": []} for n in range(60) for k in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_questions(path, shares=(0.2, 0.2))
    contexts = [{one.context for one in part} for part in (data.train, data.valid, data.test)]
    assert all(contexts) and not (contexts[0] & contexts[1] or contexts[0] & contexts[2] or contexts[1] & contexts[2])


@pytest.mark.parametrize(
    ("asked", "context", "says"),
    [
        (ask(text="Bergen"), CONTEXT, "question q1: answer is not in the passage \\('Bergen'\\); write it as it is in the context"),
        (ask(start=14), CONTEXT, "question q1: answer_start does not match \\('Oslo' is at 13, at 14 is 'slo.'\\)"),
        (ask(start=-3), CONTEXT, "answer_start does not match"),
        (ask(start=999), CONTEXT, "beyond the end"),
        (ask(), " \n", "question q1: empty context"),
        (ask(), 7, "question q1: empty context"),
        (ask(question="  "), CONTEXT, "question q1: empty question"),
        (ask(text=" "), CONTEXT, "empty answer"),
        (ask(start="13"), CONTEXT, "no text and start of an answer"),
        (ask(start=True), CONTEXT, "no text and start of an answer"),
        (ask(answers="Oslo"), CONTEXT, "answers are not a list"),
        (ask(answers=[], is_impossible=False), CONTEXT, "question q1: no answer; give one"),
        ({"question": "who?"}, CONTEXT, "paragraph 1: question without an id"),
        ("who?", CONTEXT, "question without an id"),
        (ask(question="who\0?"), CONTEXT, "NUL"),
    ],
)
def test_malformed_questions_are_named_and_counted(tmp_path, asked, context, says):
    path = squad(tmp_path / "dev.json", asked, context=context)
    good = {"title": "More", "paragraphs": [{"context": CONTEXT, "qas": [ask("good")]}]}
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "data": [*whole["data"], good]}))
    with pytest.raises(BadFile, match=rf"dev\.json, article 1 \(Homes\), paragraph 1.*{says.split(': ', 1)[-1]}"):
        all_of(path)
    found = all_of(path, on_error="skip")
    assert [one.id for one in found.train] == ["good"] and len(found.skipped) == 1 and "1 of 2 questions skipped" in str(found.skipped)


def test_duplicated_ids(tmp_path):
    path = squad(tmp_path / "dev.json", ask(), ask(), ask("q2"))
    with pytest.raises(BadFile, match=r"duplicated question id \(q1\); give every question an id of its own, or skip"):
        all_of(path)
    found = all_of(path, on_error="skip")
    assert [one.id for one in found.train] == ["q1", "q2"] and found.skipped.counts == {"duplicated question id": 1}
    assert len(read_questions(path, valid=path, shares=(0.0, 0.0), on_error="skip").valid) == 2  # another part may have them again


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ('{"data": 3}', "expected SQuAD"),
        ("[]", "expected SQuAD"),
        ('{"a": 1}\n{"a": 2}\n', r"called \.jsonl"),
        ('{"data": [{"title": "x"}]}', "no list of paragraphs"),
        ('{"data": [3]}', "article 1: no list of paragraphs"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "paragraph 1: no list of questions"),
        ("", "no example in it"),
        ('{"data": []}', "no example in it"),
    ],
)
def test_files_that_are_not_squad(tmp_path, content, says):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BadFile, match=rf"x\.json.*{says}"):
        all_of(tmp_path / "x.json")


def test_rows_that_are_not_questions(tmp_path):
    path = tmp_path / "x.jsonl"
    for row, says in (
        ('{"text": "a"}', "no context and question"),
        ("3", "no context"),
        ('{"context": "a", "question": "b", "answers": {"text": ["a"]}}', "same length"),
    ):
        path.write_text(row + "\n")
        with pytest.raises(BadFile, match=rf"x\.jsonl, line 1: .*{says}"):
            all_of(path)
    with pytest.raises(MissingFile, match="no such file"):
        all_of(tmp_path / "none.jsonl")


def test_large_files_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 1000)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(BadFile, match=r"more than 1,000 bytes"):
        all_of(tmp_path / "bomb.json.gz")


# -- generated facts ---------------------------------------------------------------------------------------------------


def test_facts_are_where_they_are_said_to_be():
    found = facts("count=200,people=3,relations=2,questions=3,unanswerable=25,seed=4")
    assert len(found) == 600 and found == facts("count=200,people=3,relations=2,questions=3,unanswerable=25,seed=4")
    without = [fact for fact in found if fact.start is None]
    assert 100 < len(without) < 200
    for context, question, answer, start in found:
        assert start is None or context[start : start + len(answer)] == answer
        assert len(context.split(". ")) >= 6 and "{" not in context + question
    assert facts("count=3,seed=1") != facts("count=3,seed=2")
    long = facts("count=2,sentences=60")
    assert all(len(fact.context) > 1200 and fact.context[fact.start :].startswith(fact.answer) for fact in long)
    with pytest.raises(NotSupported, match="people=0"):
        facts("people=0")


# -- a published set ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (DATA / "xquad" / "xquad.en.json.gz").is_file(), reason="no xquad: set REGARD_DATA to the folder that holds it")
@pytest.mark.parametrize(("language", "first"), [("en", "308"), ("de", "308")])
def test_xquad(language, first):
    from regard.data import Tokenizer
    from regard.metrics.squad import score_answers, sliding_window
    from regard.tasks.question_answering import golds
    from regard.tasks.span_encoding import encode_questions, expressible

    data = all_of(DATA / "xquad" / f"xquad.{language}.json.gz")
    assert len(data.train) == 1190 and len(data.skipped) == 0 and data.train[0].answers[0].text == first
    assert len({one.context for one in data.train}) == 240
    tokenizer = Tokenizer.train({one.context: 0 for one in data.train}, "bpe", 2000)
    windows = encode_questions(data.train, tokenizer, 128, 64)
    assert len(windows) > 2 * len(data.train)
    limit = score_answers(expressible(data.train, tokenizer), golds(data.train))
    assert limit["exact_match"] > 0.97  # what tokens can express; the rest ends inside one
    baseline = score_answers([sliding_window(one.text, one.context) for one in data.train], golds(data.train))
    assert 0.05 < baseline["f1"] < 0.4

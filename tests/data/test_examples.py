"""Examples with labels: the formats people have, and what is wrong with a line."""

import gzip
import json

import pytest

from regard.data.examples import Labelled, Tagged, read_labelled, read_tagged
from regard.errors import BadFile, NotSupported

ALL = {"shares": (0.0, 0.0)}
ONE = [Labelled(("good film",), "1"), Labelled(("so so, really",), "0")]
TWO = [Labelled(("a man sleeps", "he is awake"), "no"), Labelled(("it rains", "it is wet"), "yes")]
TAGS = [Tagged(("John", "lives", "in", "Ulm"), ("B", "O", "O", "B")), Tagged(("Yes",), ("O",))]


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("name", "content", "fields", "expected"),
    [
        ("a.tsv", "good film\t1\nso so, really\t0\n", (), ONE),
        ("a.tsv.gz", "sentence\tlabel\ngood film\t1\nso so, really\t0\n", (), ONE),
        ("a.tsv", "id\tLabel\tText\n7\t1\tgood film\n8\t0\tso so, really\r\n", (), ONE),
        ("a.tsv", "1\tx\tgood film\n0\ty\tso so, really\n", ("3", "1"), ONE),
        ("a.tsv", "who\twhat\n1\tgood film\n0\tso so, really\n", ("what", "who"), ONE),
        ("a.txt", "1 good film\n0 so so, really\n", (), ONE),
        ("a.jsonl", '{"text": "good film", "label": 1}\n{"text": "so so, really", "label": "0"}\n', (), ONE),
        ("a.jsonl", '{"d": {"t": "good film"}, "y": 1}\n{"d": {"t": "so so,\\n really"}, "y": 0}\n', ("d.t", "y"), ONE),
        ("b.tsv", "a man sleeps\the is awake\tno\nit rains\tit is wet\tyes\n", (), TWO),
        ("b.tsv", "pair_ID\tsentence_A\tsentence_B\tentailment_judgment\n1\ta man sleeps\the is awake\tno\n2\tit rains\tit is wet\tyes\n", (), TWO),
        ("b.jsonl", "".join(json.dumps(dict(zip(("premise", "hypothesis", "gold_label"), (*o.texts, o.label), strict=True))) + "\n" for o in TWO), (), TWO),
    ],
)  # fmt: skip
def test_texts_and_pairs(write, name, content, fields, expected):
    assert read_labelled(write(name, content), fields=fields, **ALL).train == expected


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("a.tsv", "John\tB\nlives\tO\nin\tO\nUlm\tB\n\n\nYes\tO\n", ()),
        ("a.conll", "-DOCSTART- -X- O O\n\nJohn NNP I-NP B\nlives VB X O\nin IN X O\nUlm NN X B\n\nYes UH X O", ()),
        ("a.conll", "John NNP B x\nlives VB O x\nin IN O x\nUlm NN B x\n\nYes UH O x", ("1", "3")),
        ("a.jsonl", "".join(json.dumps({"tokens": o.words, "tags": o.labels}) + "\n" for o in TAGS), ()),
        ("a.jsonl", "".join(json.dumps({"x": o.words, "y": o.labels}) + "\n" for o in TAGS), ("x", "y")),
    ],
)
def test_words(write, name, content, fields):
    assert read_tagged(write(name, content), fields=fields, **ALL).train == TAGS


@pytest.mark.parametrize(
    ("read", "name", "content", "says"),
    [
        (read_labelled, "a.tsv", "good\t1\nbad\nfine\t1\n", "line 2: too few columns"),
        (read_labelled, "a.tsv", "good\t1\n\t0\nfine\t1\n", "line 2: empty column"),
        (read_labelled, "a.jsonl", '{"text": "a", "label": 1}\n{"text": "a"}\n{"text": "b", "label": 1}\n', "line 2: no text in field"),
        (read_labelled, "a.jsonl", '{"text": "a", "label": 1}\n{"text": 1, "label": 1}\n{"text": "b", "label": 1}\n', "line 2: no text in field 'text'"),
        (read_tagged, "a.tsv", "a\tO\nb\n\nc\tO\n", "line 2: no word with a label"),
        (read_tagged, "a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"], "tags": []}\n{"tokens": ["b"], "tags": ["O"]}\n', "line 2: no two lists"),
    ],
)  # fmt: skip
def test_bad_lines(write, read, name, content, says):
    path = write(name, content)
    with pytest.raises(BadFile, match=says):
        read(path, **ALL)
    kept = read(path, on_error="skip", **ALL)
    assert len(kept.train) == 2 and len(kept.skipped) == 1


def test_mistakes(write):
    path = write("a.tsv", "text\tlabel\n")
    with pytest.raises(BadFile, match="no example"):
        read_labelled(path)
    with pytest.raises(BadFile, match="no columns called 'txt'"):
        read_labelled(path, fields=("txt", "label"))
    for read, fields in ((read_labelled, ("a",)), (read_tagged, ("a",))):
        with pytest.raises(NotSupported, match="fields"):
            read(path, fields=fields)


def test_parts(write):
    path = write("a.tsv", "".join(f"text number {n}\t{n % 2}\n" for n in range(100)))
    found = read_labelled(path, shares=(0.2, 0.2))
    assert len(found.train) + len(found.valid) + len(found.test) == 100 and found.valid and found.test
    assert not set(found.train) & set(found.valid)
    own = read_labelled(path, valid=write("b.tsv", "x\t1\n"))
    assert own.valid == [Labelled(("x",), "1")] and own.digest != found.digest


def test_columns_that_nobody_named(write):
    with pytest.raises(BadFile, match="4 columns"):
        read_labelled(write("a.tsv", "1\ta\tb\tyes\n"))
    with pytest.raises(NotSupported, match="counted from 1"):
        read_labelled(write("a.tsv", "a\tyes\n"), fields=("1", "0"))
    for fields in (("tokens", "tags"), ("0", "1")):
        with pytest.raises(NotSupported, match="numbers, from 1"):
            read_tagged(write("a.conll", "a O\n"), fields=fields)


def test_a_label_in_the_first_column_is_recognised(tmp_path):
    """The first column repeats itself, the second does not; a few lines, or a column of equals on both sides, show nothing."""
    rows = [(("good", "bad")[n % 2], f"text number {n}") for n in range(40)]
    for name, mark in (("a.tsv", "\t"), ("a.csv", ",")):
        path = tmp_path / name
        path.write_text("".join(f"{label}{mark}{text}\n" for label, text in rows))
        found = read_labelled(path, shares=(0.0, 0.0)).train
        assert [(one.label, one.texts) for one in found] == [(label, (text,)) for label, text in rows]
        note = read_labelled(path, shares=(0.0, 0.0)).note
        assert "the first column is taken for the label" in note and "'good'" in note and "--fields 1 2" in note
        path.write_text("".join(f"{text}{mark}{label}\n" for label, text in rows))
        assert {one.label for one in read_labelled(path, shares=(0.0, 0.0)).train} == {"good", "bad"}
    path.write_text("".join(f"{label},{text}\n" for label, text in rows[:4]))
    assert read_labelled(path, shares=(0.0, 0.0)).train[0].label == "text number 0"
    told = read_labelled(path, fields=("2", "1"), shares=(0.0, 0.0))
    assert told.train[0].label == "good" and told.note == ""


def test_generated_examples():
    splits = read_labelled("facts:count=300,seed=1")
    everything = [one for part in splits.parts for one in part]
    assert len(everything) == 300 and len({one.label for one in everything}) == 10 and {len(one.texts) for one in everything} == {1}
    tagged = read_tagged("facts:count=300,seed=1", shares=(0.0, 0.0)).train
    labels = {label for one in tagged for label in one.labels}
    assert labels == {"O", *(f"{mark}-{kind}" for mark in "BI" for kind in ("person", "place", "job", "animal", "food", "thing"))}
    for one in tagged:
        assert len(one.words) == len(one.labels) and one.labels.count("B-person") == one.labels.count("I-person") == 1
    with pytest.raises(NotSupported, match="count=0"):
        read_labelled("facts:count=0")

"""CSV, Parquet, datasets of the `datasets` library, header lines, and files that change or are no files."""

import csv
import io
import os
import sys
import tracemalloc

import pytest

from regard.data import Texts, read_pairs, text
from regard.data.arrow import open_dataset
from regard.data.examples import Labelled, Tagged, read_labelled, read_tagged
from regard.data.lines import Fault, cells, every_line
from regard.errors import BadFile, MissingFile, NotSupported

PAIRS = [("A man, old", 'Ein "alter" Mann'), ("Two; three", "Zwei\u2028drei"), ("a b", "c d")]
ALL = {"shares": (0, 0)}


def table(path, rows, delimiter=","):
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=delimiter).writerows(rows)  # the standard library is the oracle
    path.write_bytes(written.getvalue().encode())
    return path


def flat(pairs):
    return [tuple(" ".join(side.split()) for side in pair) for pair in pairs]


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_csv(tmp_path, delimiter):
    plain = table(tmp_path / "a.csv", PAIRS, delimiter)
    assert read_pairs(plain, **ALL).train == flat(PAIRS)
    named = table(tmp_path / "b.csv", [("id", "de", "en"), *((n, t, s) for n, (s, t) in enumerate(PAIRS))], delimiter)
    assert read_pairs(named, fields=("en", "de"), **ALL).train == flat(PAIRS)
    assert read_pairs(named, fields=("3", "2"), **ALL).train == [("en", "de"), *flat(PAIRS)][1:]  # `en de` is a header line
    with pytest.raises(BadFile, match=r"no column called 'fr'; the header has 'id', 'de', 'en'"):
        read_pairs(named, fields=("en", "fr"))


def test_a_cell_of_several_lines_and_a_quotation_mark_that_is_never_closed(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('one,"un\nune"\ntwo,deux\n')
    assert read_pairs(path, **ALL).train == [("one", "un une"), ("two", "deux")]
    assert [where.rpartition(" ")[2] for where, _ in cells(path)] == ["1", "3"]
    path.write_text('one,un\ntwo,"deux\nthree,trois\n')
    with pytest.raises(BadFile, match=r"line 2: not CSV .*quotation"):
        read_pairs(path)
    found = read_pairs(path, on_error="skip", **ALL)
    assert found.train == [("one", "un")] and str(found.skipped).startswith("1 of 2 pairs skipped: 1 not CSV")


def test_a_header_line_is_no_pair(tmp_path):
    path = tmp_path / "a.tsv"
    for header in ("en\tde", "source\ttarget", "Src\tTgt"):
        path.write_text(f"{header}\none\teins\n")
        found = read_pairs(path, **ALL)
        assert found.train == [("one", "eins")] and "1 of 2 pairs skipped: 1 header line" in str(found.skipped)
    path.write_text("one\tun\nen\tde\n")
    assert len(read_pairs(path, **ALL).train) == 2


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"translation": [{"en": s, "de": t} for s, t in PAIRS], "n": [1, 2, 3]}), path)
    assert read_pairs(path, fields=("translation.en", "translation.de"), **ALL).train == flat(PAIRS)
    with pytest.raises(BadFile, match=r"row 1: no text in field 'en'.*'translation', 'n'.*--fields"):
        read_pairs(path, fields=("en", "de"))
    parquet.write_table(pyarrow.table({"text": ["good", "bad"], "label": [1.5, 2.0]}), path)
    assert read_labelled(path, **ALL).train == [Labelled(("good",), "1.5"), Labelled(("bad",), "2.0")]
    assert [piece.text for piece in Texts(path, **ALL).pieces()] == ["good", "bad"]
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadFile, match="not a Parquet file, or damaged"):
        read_labelled(path)


def test_an_absent_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(NotSupported, match=r"pip install 'regard\[data\]'"):
        read_pairs(tmp_path / "a.parquet")
    open_dataset.cache_clear()
    with pytest.raises(NotSupported, match=r"pip install 'regard\[data\]'"):
        read_pairs("hf:any")


def test_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})
    rows = datasets.Dataset.from_dict({"text": ["a b", "c"], "label": [1, 0]}, features=names)
    datasets.DatasetDict({"train": rows, "validation": rows.select([0])}).save_to_disk(tmp_path / "two")
    spec = f"hf:{tmp_path / 'two'}"
    found = read_labelled(spec, valid=f"{spec}#validation", shares=(0, 0))
    assert found.train == [Labelled(("a b",), "good"), Labelled(("c",), "bad")] and found.valid == found.train[:1]
    assert [piece.text for piece in Texts(spec, **ALL).pieces()] == ["a b", "c"] and Texts(spec).signature == Texts(spec).signature
    with pytest.raises(NotSupported, match="no split 'test'; name one of train, validation"):
        read_labelled(f"{spec}#test")
    with pytest.raises(MissingFile, match="no such folder"):
        read_labelled(f"hf:{tmp_path / 'none'}")
    with pytest.raises(BadFile, match="nothing is downloaded"):
        read_labelled("hf:nobody/nothing")
    tags = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "B"]))}
    )
    datasets.Dataset.from_dict({"tokens": [["x", "y"]], "ner_tags": [[0, 1]]}, features=tags).save_to_disk(tmp_path / "tags")
    assert read_tagged(f"hf:{tmp_path / 'tags'}", **ALL).train == [Tagged(("x", "y"), ("O", "B"))]


def test_a_pipe_is_refused_at_once(tmp_path):
    pipe = tmp_path / "a.tsv"
    os.mkfifo(pipe)
    for read in (lambda: read_pairs(pipe), lambda: read_labelled(pipe), lambda: Texts(pipe), lambda: next(every_line("/dev/zero"))):
        with pytest.raises(BadFile, match="a pipe or a device, which can be read only once"):
            read()


@pytest.mark.parametrize("change", ["grow", "shrink", "replace"])
def test_a_file_that_changes_while_it_is_read(tmp_path, change):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {n}\n" for n in range(50_000)))
    reading = every_line(path)
    next(reading)
    if change == "grow":
        with path.open("a") as file:
            file.write("more\n")
    elif change == "shrink":
        os.truncate(path, 1000)
    else:
        (tmp_path / "b.txt").write_text(path.read_text())
        (tmp_path / "b.txt").replace(path)
    with pytest.raises(BadFile, match="changed while it was read"):
        list(reading)


def test_a_text_that_changes_between_two_readings(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "SAMPLE", 100)  # a shorter one is read once
    monkeypatch.setattr(text, "PIECE", 50)
    path = tmp_path / "a.txt"
    path.write_text("one\n" * 100)
    texts = Texts(path)
    assert texts.survey.digest
    path.write_text("two\n" * 101)
    with pytest.raises(BadFile, match="has changed since it was first read"):
        list(texts.pieces())


def test_pairs_are_arrays_not_objects(tmp_path):
    path, count = tmp_path / "a.tsv", 20_000
    pairs = [
        (f"a man in a blue shirt is standing on ladder number {n}", f"ein Mann in einem blauen Hemd auf Leiter {n}") for n in range(count)
    ]
    path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    characters = path.stat().st_size / count
    tracemalloc.start()
    found = read_pairs(path, **ALL)
    held = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert found.train == pairs and found.train[3:5] == pairs[3:5] and found.train[-1] == pairs[-1]
    assert held < 1.3 * characters + 40  # bytes per pair: text that grows by an eighth, two offsets, a place, a number


def test_faults_of_csv_have_their_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"one,un\n\xff,deux\nthree,trois\n")
    found = list(cells(path))
    assert [type(row) for _, row in found] == [list, Fault, list] and "line 2" in found[1][1].where

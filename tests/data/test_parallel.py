"""Pairs from files: every format, every kind of bad input, and splits that nothing leaks through."""

import gzip
import json
import lzma
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import leaked, read_pairs
from regard.data.lines import Fault, lines
from regard.data.splits import choose_parts, part_of, place
from regard.errors import BadFile, MissingFile, NotSupported, RegardError, UnknownName

PAIRS = [("one cat", "une chatte"), ("two dogs", "deux chiens"), ("naïve 😀", "très naïf"), ("a\u2028b\x85c", "d\x0be")]
ALL = {"shares": (0, 0)}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else lzma.compress(raw) if name.endswith(".xz") else raw)
        return path

    return write


def text(side, end="\n"):
    return "".join(pair[side] + end for pair in PAIRS)


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_format(write, packed, end):
    two = [write(f"a.en{packed}", text(0, end)), write(f"a.fr{packed}", text(1, end))]
    table = write(f"a.tsv{packed}", "".join(f"{s}\t{t}\tmore{end}" for s, t in PAIRS))
    named = write(f"b.tsv{packed}", f"id\tfr\ten{end}" + "".join(f"\t{t}\t{s}{end}" for s, t in PAIRS))
    flat = write(f"a.jsonl{packed}", "".join(json.dumps({"source": s, "target": t}) + end for s, t in PAIRS))
    deep = write(f"b.jsonl{packed}", "".join(json.dumps({"translation": {"en": s, "fr": t}}) + end for s, t in PAIRS))
    plain = PAIRS[:3]  # JSON may spell other line ends: they become spaces, a sentence is one line
    assert read_pairs(two, **ALL).train == read_pairs(f"{two[0]} {two[1]}", **ALL).train == PAIRS
    assert read_pairs(table, **ALL).train == read_pairs(str(table), **ALL).train == PAIRS
    assert read_pairs(named, fields=("en", "fr"), **ALL).train == PAIRS
    assert read_pairs(flat, **ALL).train == [*plain, ("a b c", "d e")]
    assert read_pairs(deep, fields=("translation.en", "translation.fr"), **ALL).train == [*plain, ("a b c", "d e")]


def test_the_last_line_may_lack_its_end_and_the_first_may_have_a_mark(write):
    two = write("a.en", "\ufeffone\ntwo"), write("a.fr", "un\ndeux\n")
    assert read_pairs(two, **ALL).train == [("one", "un"), ("two", "deux")]


def test_white_space_around_a_sentence_is_no_part_of_it(write):
    assert read_pairs((write("a.en", " one \n"), write("a.fr", "\tun\n")), **ALL).train == [("one", "un")]


line = st.text(st.characters(blacklist_characters="\n\r\0", blacklist_categories=("Cs",)), min_size=1).filter(lambda s: s.strip())


@settings(max_examples=50)
@given(st.lists(st.tuples(line, line), min_size=1, max_size=6))
def test_what_was_written_is_read(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("pairs")
    for side, name in enumerate(("a.en", "a.fr")):
        (folder / name).write_bytes(b"\n".join(pair[side].encode() for pair in pairs))
    found = read_pairs((folder / "a.en", folder / "a.fr"), **ALL).train
    first = pairs[0][0].removeprefix("\ufeff"), pairs[0][1].removeprefix("\ufeff")
    if all(side.strip() for side in first):
        assert found == [(s.strip(), t.strip()) for s, t in [first, *pairs[1:]]]


# -- bad pairs: stop or skip -------------------------------------------------------------------------------------------

BAD_LINES = {
    "empty line": b"",
    "not UTF-8": b"caf\xe9",
    "NUL byte": b"a\0b",
    "line too long": b"x" * 70_000,
}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("what", BAD_LINES)
def test_a_bad_line(write, what, side):
    sides = [["a", "b", "c"], ["x", "y", "z"]]
    raw = [[s.encode() for s in some] for some in sides]
    raw[side][1] = BAD_LINES[what]
    paths = [write(f"a.{n}", b"\n".join(some) + b"\n") for n, some in enumerate(raw)]
    with pytest.raises(BadFile, match=what) as caught:
        read_pairs(paths)
    assert f"{paths[side]}, line 2" in str(caught.value) and "--on-error skip" in str(caught.value)
    found = read_pairs(paths, on_error="skip", **ALL)
    assert found.train == [("a", "x"), ("c", "z")]
    assert found.skipped.counts == {what: 1} and f"{paths[side]}, line 2" in str(found.skipped)


BAD_ROWS = {
    "a.tsv": {"no tab here": "too few columns", "\tx": "empty column", "a\t ": "empty column", "\t\t": "empty line"},
    "a.jsonl": {
        "{": "not JSON",
        "[" * 60_000: "not JSON",
        "[1]": "no text in field 'source'",
        '{"source": "a"}': "no text in field 'target'",
        '{"source": "a", "target": 3}': "no text in field 'target'",
        '{"source": "a", "target": null}': "no text in field 'target'",
        '{"source": "a", "target": " \\n"}': "empty field",
        '{"source": "a\\u0000", "target": "b"}': "NUL byte",
        '{"source": "a\\ud800", "target": "b"}': "half a surrogate pair",
    },
}


@pytest.mark.parametrize(("name", "row", "what"), [(name, row, what) for name, rows in BAD_ROWS.items() for row, what in rows.items()])
def test_a_bad_row(write, name, row, what):
    good = "a\tb" if name == "a.tsv" else '{"source": "a", "target": "b"}'
    path = write(name, f"{good}\n{row}\n{good}\n")
    with pytest.raises(BadFile, match=what) as caught:
        read_pairs(path)
    assert f"{path}, line 2" in str(caught.value)
    found = read_pairs(path, on_error="skip", **ALL)
    assert found.train == [("a", "b")] * 2 and found.skipped.counts == {what: 1}


def test_many_faults_are_counted_and_a_few_told(write):
    path = write("a.tsv", "a\tb\n" + "x\n" * 1200 + "\n" * 7)
    found = read_pairs(path, on_error="skip", **ALL)
    assert len(found.skipped) == 1207 and found.skipped.counts == {"too few columns": 1200, "empty line": 7}
    assert "1,207 of 1,208 pairs" in str(found.skipped) and len(str(found.skipped)) < 2000


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_huge_line_is_never_held(write, name):
    path = write(name, b"a\tb\n" + b"x" * 10_000_000 + b"\n" + b"c\td\n" + b"y" * 10_000_000)
    tracemalloc.start()
    found = list(lines(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert [f.what if isinstance(f, Fault) else f for f in found] == ["a\tb", "line too long", "c\td", "line too long"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_the_longest_line_allowed(write, end):
    for length, sound in ((9, True), (10, True), (11, False), (12, False), (13, False), (23, False)):
        path = write("a.txt", b"x" * length + end + (b"b\n" if end else b""))
        found = list(lines(path, longest=10))
        assert isinstance(found[0], str) == sound and found[1:] == (["b"] if end else [])


# -- bad files: always stop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["stop", "skip"])
def test_unequal_numbers_of_lines(write, bad):
    a, b = write("a.en", "1\n2\n3\n4\n5\n"), write("a.fr", "1\n2\n3\n")
    with pytest.raises(BadFile, match=r"a\.en has 5 lines and .*a\.fr has 3: line 4 of 5 has no partner in .*a\.fr"):
        read_pairs((a, b), on_error=bad)
    with pytest.raises(BadFile, match=r"a\.fr has 3 lines and .*a\.en has 5: line 4 of 5 has no partner in .*a\.fr"):
        read_pairs((b, a), on_error=bad)


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.jsonl", "a.tsv.xz"])
def test_an_empty_file(write, name):
    with pytest.raises(BadFile, match="no pair"):
        read_pairs(write(name, ""), on_error="skip")


def test_two_empty_files_and_nothing_but_faults(write):
    with pytest.raises(BadFile, match="no pair"):
        read_pairs((write("a.en", ""), write("a.fr", "")))
    with pytest.raises(BadFile, match=r"no pair.*2 of 2 pairs skipped: 2 too few columns"):
        read_pairs(write("a.tsv", "x\ny\n"), on_error="skip")


def test_missing_files_and_folders(write, tmp_path):
    there = write("a.en", "one\n")
    for spec in (tmp_path / "none.tsv", (there, tmp_path / "none.fr"), str(tmp_path / "none.tsv")):
        with pytest.raises(MissingFile, match=r"none.*no such file"):
            read_pairs(spec)
    with pytest.raises(FileNotFoundError):
        read_pairs(tmp_path / "none.tsv")
    for spec in (tmp_path, (there, tmp_path), (tmp_path, there)):
        with pytest.raises(BadFile, match="is a folder"):
            read_pairs(spec)
    with pytest.raises(BadFile, match="is a folder"):
        next(lines(tmp_path))
    with pytest.raises(MissingFile):
        next(lines(tmp_path / "none"))


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.tsv.xz"])
def test_a_damaged_archive(write, name):
    whole = write(name, "".join(f"{n} {n * n * 7919 % 10007}\tb\n" for n in range(5000))).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for raw in (whole[: len(whole) // 2], whole[:5], bytes(flipped), b"no archive at all"):
        path = write("tmp", raw).rename(write(name, ""))
        with pytest.raises(BadFile, match=r"after line [\d,]+: the .* archive is damaged|not UTF-8|column"):
            read_pairs(path)
    assert len(read_pairs(write(name, "a\tb\n" * 9), **ALL).train) == 9


def test_what_is_no_data(write):
    with pytest.raises(BadFile, match=r"\.tsv.*two files"):
        read_pairs(write("a.en", "one\n"))
    with pytest.raises(BadFile, match="no column called 'de'; the header has 'en', 'fr'"):
        read_pairs(write("a.tsv", "en\tfr\na\tb\n"), fields=("en", "de"))
    with pytest.raises(BadFile, match=r"line 1: NUL byte where the header"):
        read_pairs(write("a.tsv", "\0\na\tb\n"), fields=("en", "de"), on_error="skip")
    with pytest.raises(NotSupported, match="3 files"):
        read_pairs(("a", "b", "c"))
    with pytest.raises(NotSupported, match='"stop"'):
        read_pairs("numbers:en-de", on_error="ignore")
    with pytest.raises(UnknownName, match="did you mean 'numbers'"):
        read_pairs("number:en-de")
    with pytest.raises(NotSupported, match="shares"):
        read_pairs("numbers:en-de", shares=(0.5, 0.5))


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from(["a.tsv", "a.csv", "a.jsonl", "a.tsv.gz", "a.jsonl.xz", "a.parquet"]),
    st.sampled_from(["stop", "skip"]),
)
def test_any_bytes_give_pairs_or_a_typed_error(tmp_path_factory, raw, name, bad):
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(raw)
    try:
        found = read_pairs(path, on_error=bad, **ALL).train
    except RegardError as error:
        assert str(path) in str(error)
    else:
        assert found and all(s.strip() and t.strip() for s, t in found)


# -- splits ------------------------------------------------------------------------------------------------------------


def test_copies_never_stand_on_both_sides(write):
    rows = [(f"sentence {n % 400}", f"phrase {n}") for n in range(2000)]
    found = read_pairs(write("a.tsv", "".join(f"{s}\t{t}\n" for s, t in rows)), shares=(0.1, 0.2))
    parts = [found.train, found.valid, found.test]
    assert sorted(pair for part in parts for pair in part) == sorted(rows) and leaked(found) == 0
    assert not {s for s, _ in found.train} & {s for s, _ in found.test} and not {s for s, _ in found.valid} & {s for s, _ in found.test}
    assert 0.05 < len(found.valid) / 2000 < 0.15 and 0.14 < len(found.test) / 2000 < 0.26
    more = read_pairs(write("b.tsv", "new\tneu\n" + "".join(f"{s}\t{t}\n" for s, t in rows[::-1])), shares=(0.1, 0.2))
    assert set(found.test) <= set(more.test) and set(found.train) <= set(more.train)  # pairs added later move nothing


def test_the_split_of_today_is_that_of_tomorrow():
    part = part_of((0.05, 0.05))
    assert [n for n in range(300) if part(str(n)) == "test"] == [29, 72, 90, 99, 115, 143, 195, 228, 249, 273]


def test_small_sets_still_have_every_part():
    places = np.array([place(key) for key in "abc"])
    assert sorted(choose_parts(places, (0.01, 0.01))) == [0, 1, 2]
    assert choose_parts(places[:1], (0.01, 0.01)).tolist() == [0]
    assert choose_parts(places, (0, 0)).tolist() == [0, 0, 0]


def test_parts_the_user_names_are_taken_as_they_are(write):
    train = write("a.tsv", "".join(f"s{n}\tt{n}\n" for n in range(200)))
    test = write("t.tsv", "s3\tt3\nnew\tneu\n")
    found = read_pairs(train, test=test)
    assert found.test == [("s3", "t3"), ("new", "neu")] and leaked(found) == 1
    assert 0 < len(found.valid) < 40 and len(found.train) + len(found.valid) == 200
    both = read_pairs(train, valid=test, test=test)
    assert len(both.train) == 200 and both.valid == both.test
    assert both.digest != found.digest and read_pairs(train, test=test).digest == found.digest

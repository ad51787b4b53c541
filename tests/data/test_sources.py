"""Sentences that need no file: numbers, dates, messages of programs, digits to copy and to turn round."""

import datetime
import struct
import sys

import pytest

import regard.data
from regard.data import leaked, read_pairs
from regard.data.sources import _spell, catalogues, messages
from regard.errors import BadFile, MissingFile, NotSupported, UnknownName

UNITS = [
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
TENS = [".", ".", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def german(n: int, last: bool = True) -> str:
    """German numbers below 100,000, from the rules: a second writing, to compare with."""
    if n >= 1000:
        return german(n // 1000, False) + "tausend" + (german(n % 1000) if n % 1000 else "")
    if n >= 100:
        return UNITS[n // 100] + "hundert" + (german(n % 100, last) if n % 100 else "")
    if n >= 20:
        return (UNITS[n % 10] + "und" if n % 10 else "") + TENS[n // 10]
    return "eins" if n == 1 and last else UNITS[n]


def test_german_is_right_as_far_as_it_is_offered():
    spell = _spell("de")
    some = [*range(1200), *range(1200, 100_000, 37), *range(1000, 100_000, 1000), *range(1001, 100_000, 1000), 99_999]
    assert [n for n in some if spell(n) != german(n)] == []
    parts = _spell("de_parts")
    assert [n for n in some if parts(n).replace(" ", "") != german(n)] == []
    assert parts(66_217) == "sechs und sech zig tausend zwei hundert sieb zehn" and parts(31) == "ein und drei ßig"


def test_numbers():
    found = read_pairs("numbers:en-de,below=1000")
    assert len(found.train) + len(found.valid) + len(found.test) == 1000 and leaked(found) == 0
    assert ("one hundred and one", "einhunderteins") in (*found.train, *found.valid, *found.test)
    assert found.digest == read_pairs("numbers:en-de,below=1000").digest
    assert read_pairs("numbers:en-digits,below=50", shares=(0, 0)).train[42] == ("forty-two", "4 2")
    few = read_pairs("numbers:fr-ja,count=30,seed=5", shares=(0, 0)).train
    assert len(few) == 30 == len(set(few)) and few != read_pairs("numbers:fr-ja,count=30,seed=6", shares=(0, 0)).train


def test_no_test_number_is_seen_in_training_in_any_list():
    short, long = (
        read_pairs("numbers:digits-de,list=2,count=3000,below=2000"),
        read_pairs("numbers:digits-de,list=5,count=3000,below=2000,seed=1"),
    )
    numbers = [{n for s, _ in part for n in s.split("; ")} for part in (short.train, short.valid, short.test)]
    for n, other in enumerate((long.train, long.valid, long.test)):
        numbers[n] |= {m for s, _ in other for m in s.split("; ")}
    assert not numbers[0] & numbers[1] and not numbers[0] & numbers[2] and not numbers[1] & numbers[2]
    assert {s.count(";") for s, _ in short.train} == {0, 1} and {s.count(";") for s, _ in long.train} == {0, 1, 2, 3, 4}
    assert all(s.count(";") == t.count(";") for s, t in long.train)


def test_dates():
    found = read_pairs("dates:en-fr,count=2000")
    every = [*found.train, *found.valid, *found.test]
    assert 1900 < len(every) <= 2000 and len({s for s, _ in every}) == len(every)  # a source has one translation
    assert found.digest == read_pairs("dates:en-fr,count=2000").digest
    from babel.dates import format_date

    pairs = dict(read_pairs("dates:en-iso,count=2000", shares=(0, 0)).train)
    for source, target in pairs.items():
        day = datetime.date.fromisoformat(target)
        assert source in {format_date(day, form, "en") for form in ("full", "long", "medium", "short")}
    days = [{day for s, day in part} for part in (lambda p: (p.train, p.valid, p.test))(read_pairs("dates:en-iso,count=9000"))]
    assert not days[0] & days[1] and not days[0] & days[2] and not days[1] & days[2]


def test_may_has_one_translation():
    pairs = dict(read_pairs("dates:en-de,count=15000", shares=(0, 0)).train)
    may = {s: t for s, t in pairs.items() if s.startswith("May ")}
    assert len(may) > 300 and all("Mai" in t for t in may.values())  # the long form, never 03.05.1994


def test_copy_and_reverse():
    copy, back = read_pairs("copy:3-5,count=500", shares=(0, 0)).train, read_pairs("reverse:3-5,count=500", shares=(0, 0)).train
    assert {len(s.split()) for s, _ in copy} == {3, 4, 5} and all(s == t for s, t in copy)
    assert all(s.split() == t.split()[::-1] for s, t in back) and [s for s, _ in back] == [s for s, _ in copy]
    assert {d for s, _ in copy for d in s.split()} == set("0123456789")
    assert read_pairs("copy:7", shares=(0, 0)).train[0][0].count(" ") == 6
    assert read_pairs("copy:3-5,seed=1").digest != read_pairs("copy:3-5").digest == read_pairs("copy:3-5").digest


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("numbers:en", NotSupported, "two languages"),
        ("numbers:en-xx", UnknownName, "language of numbers"),
        ("numbers:en-de,below=100001", NotSupported, "100,000"),
        ("numbers:en-de,beow=10", UnknownName, "below"),
        ("numbers:en-de,below=many", NotSupported, "expected an integer"),
        ("numbers:en-de,below=10,count=11", NotSupported, "count=11"),
        ("numbers:en-am", NotSupported, "num2words cannot write 1100"),
        ("dates:en-xq", UnknownName, "locale"),
        ("dates:en-klingon", UnknownName, "locale"),
        ("dates:en-fr,count=0", NotSupported, "count=0"),
        ("reverse:5-3", NotSupported, "shortest and the longest"),
        ("copy:", NotSupported, "reverse:10-16"),
        ("gettext:", NotSupported, "one language"),
        ("gettext:../fr", NotSupported, "one language"),
        ("gettext:xx", MissingFile, "django"),
    ],
)
def test_what_a_source_cannot_do(spec, error, says):
    with pytest.raises(error, match=says):
        read_pairs(spec)


# -- catalogues --------------------------------------------------------------------------------------------------------


def catalogue(pairs: dict[bytes, bytes], order: str = "<") -> bytes:
    """A .mo file, written from its description."""
    pairs = dict(sorted(pairs.items()))
    at = 28 + 16 * len(pairs)
    tables, strings = [[], []], b""
    for n, side in enumerate((pairs.keys(), pairs.values())):
        for text in side:
            tables[n].append(struct.pack(f"{order}2I", len(text), at + len(strings)))
            strings += text + b"\0"
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return head + b"".join(tables[0]) + b"".join(tables[1]) + strings


MESSAGES = {
    b"": b"Content-Type: text/plain; charset=UTF-8\n",
    b"Open %(name)s\nnow": "Öffne  %(name)s jetzt".encode(),
    b"menu\x04_File": b"_Datei",
    b"%d day\0%d days": b"%d Tag\0%d Tage",
    b"OK": b"OK",
    b"%d": b"%i",
    b"not translated": b"",
    b"long": b"wort " * 61,
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    def put(name, content):
        path = tmp_path / "locale" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr("site.getsitepackages", lambda: [])
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path / "none"))
    return put


def test_catalogues_of_a_machine(machine):
    machine("de/LC_MESSAGES/b.mo", catalogue(MESSAGES))
    machine("de_DE.UTF-8/LC_MESSAGES/a.mo", catalogue({b"Save": b"Sichern"}, ">"))
    machine("de_AT/LC_MESSAGES/c.mo", catalogue({b"January": "Jänner".encode()}))
    machine("de/LC_MESSAGES/broken.mo", b"\xde\x12\x04\x95" + b"\xff" * 40)
    machine("de/LC_MESSAGES/old.mo", catalogue({b"": b"Content-Type: text/plain; charset=ISO-8859-1\n", b"Close": b"Schlie\xdfen"}))
    machine("de/LC_TIME/no.mo", catalogue({b"No": b"Nein"}))
    found = read_pairs("gettext:de", shares=(0, 0)).train
    assert found == [
        ("Save", "Sichern"),
        ("%d day", "%d Tag"),
        ("Open %(name)s now", "Öffne %(name)s jetzt"),
        ("_File", "_Datei"),
        ("Close", "Schließen"),
    ]
    assert read_pairs("gettext:de_AT", shares=(0, 0)).train == [("January", "Jänner")]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xde\x12",
        b"no catalogue at all",
        struct.pack("<7I", 0x950412DE, 0, 2**31, 28, 28, 0, 0),
        struct.pack("<7I", 0x950412DE, 0, 1, 2**31, 28, 0, 0) + b"\0" * 40,
        catalogue({b"": b"charset=no-such-charset", b"a": b"b"}),
        catalogue({b"a": b"\xff"}),
    ],
)
def test_a_broken_catalogue_is_told(tmp_path, raw):
    (tmp_path / "a.mo").write_bytes(raw)
    with pytest.raises(BadFile, match=r"a\.mo"):
        list(messages(tmp_path / "a.mo"))


def test_catalogues_of_this_machine_are_found_in_the_same_order():
    found = catalogues("fr")
    if not found:
        pytest.skip("no French catalogue is installed here")
    assert found == catalogues("fr")
    pairs = read_pairs("gettext:fr")
    assert leaked(pairs) == 0 and all(s != t and s and t for s, t in pairs.train)


def test_the_example_in_the_docstring():
    import doctest

    result = doctest.testmod(regard.data)
    assert result.attempted > 5 and not result.failed

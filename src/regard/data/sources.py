"""Embedded sources of sentence pairs: numbers, dates, digits to copy or to reverse, and messages of installed programs.

    numbers:en-de                          one hundred and one → einhunderteins, all numbers below 10,000
    numbers:en-digits,below=1000           forty-two → 4 2
    numbers:en-de,list=3,count=5000        lists of one to three numbers: five; twelve → fünf; zwölf
    numbers:en-de_parts                    one hundred and one → ein hundert eins: German, cut where its words are put together
    dates:en-fr                            Tuesday, September 27, 1994 → mardi 27 septembre 1994
    dates:en-iso,count=5000                9/27/94 → 1994-09-27
    gettext:fr                             "%d files were deleted" → "%d fichiers ont été supprimés"
    copy:10-16                             3 1 4 1 5 … → 3 1 4 1 5 …, ten to sixteen digits
    reverse:10-16,count=5000               3 1 4 → 4 1 3
    docstrings:installed                   the body of a docstring → its first line (`docstring_pairs`)
    names:20,count=5000                    names after markers among noise → the names in the order of the markers
    matches:count=5000                     reports of matches and their headlines (`matches`)
    events:8,count=5000                    a text with eight events among noise → the events in any order

A source is a function of what follows the colon and of `part`, which tells the split that a key falls in; it returns rows (key, source,
target), and rows of one key fall in the same split.
"""

from __future__ import annotations

import datetime
import difflib
import os
import random
import re
import site
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .._extras import extra
from ..errors import BadFile, MissingFile, NotSupported, UnknownName
from . import copying, docstring_pairs, matches
from .splits import Row

HIGHEST = 100_000  # number
MOST_WORDS = 60  # of a message
FORMATS = ("full", "long", "medium", "short")  # of dates
_FIRST, _LAST = datetime.date(1970, 1, 1).toordinal(), datetime.date(2069, 12, 31).toordinal()
_PARTS = re.compile("tausend|hundert|und|null|eins?|zwei|drei|vier|fünf|sechs?|sieb(?:en)?|acht|neun|zehn|elf|zwölf|zwan|zig|ßig")


def numbers(text: str, part: Callable[[str], str]) -> list[Row]:
    """Numbers written out in two languages: unlimited sentences whose translation is known to be right.

    Words come from `num2words`. Known faults of it lie above: German 101,001 becomes "einhunderteinstausendeins", a million gets
    spaces and a capital. So numbers stay below 100,000, where German was checked against a second writing of the rules. For
    other languages its output is used unchanged: good enough for practice, no authority on grammar (Amharic ends at 1,099 and says so;
    Azerbaijani writes 91,260 like 90,260).

    A number belongs to training, validation or test by the hash of its digits, whatever the list; a list holds numbers of one
    part only. So no test number is ever seen in training, and lists of three and of six share one split.
    """
    head, chosen = source_options(text, {"below": 10_000, "list": 1, "count": 0, "seed": 0})
    below, longest = between_option("below", chosen["below"], 2, HIGHEST), between_option("list", chosen["list"], 1, 100)
    spell_source, spell_target = (_spell(language) for language in _two(head, "numbers:en-de"))
    generator = random.Random(chosen["seed"])
    if longest == 1:
        count = between_option("count", chosen["count"] or below, 1, below)
        lists = [[n] for n in (range(below) if count == below else sorted(generator.sample(range(below), count)))]
    else:
        count = between_option("count", chosen["count"] or 20_000, 1, 10_000_000)
        together: dict[str, list[int]] = {}
        for n in range(below):
            together.setdefault(part(str(n)), []).append(n)
        lists = []
        for _ in range(count):
            first = generator.randrange(below)
            others = together[part(str(first))]
            lists.append([first, *(others[generator.randrange(len(others))] for _ in range(generator.randrange(longest)))])
    return [(str(some[0]), "; ".join(map(spell_source, some)), "; ".join(map(spell_target, some))) for some in lists]


def _spell(language: str) -> Callable[[int], str]:
    if language == "digits":
        return lambda n: " ".join(str(n))
    with extra("data"):
        from num2words import CONVERTER_CLASSES

    if language == "de_parts":
        german = _spell("de")
        return lambda n: " ".join(_PARTS.findall(german(n)))
    if language not in CONVERTER_CLASSES:
        raise UnknownName("language of numbers", language, ["digits", "de_parts", *sorted(CONVERTER_CLASSES)])
    written: dict[int, str] = {}

    def spell(n: int) -> str:
        if n not in written:
            try:
                written[n] = " ".join(CONVERTER_CLASSES[language].to_cardinal(n).split())
            except Exception as wrong:  # whatever a language's rules stumble over
                raise NotSupported(f"num2words cannot write {n} in {language!r} ({wrong!r}); change the language or below") from wrong
        return written[n]

    return spell


def dates(text: str, part: Callable[[str], str]) -> list[Row]:
    """Dates written in two locales: the order of day, month and year changes, so a translator has to reorder.

    Text comes from `Babel` (CLDR), in its four formats: full, long, medium, short; both sides have the same one. Days are drawn
    from 1970 to 2069, so that a year of two digits means one year. Where two formats write a day alike on the source side (May
    3, 1994), only the longer counts: a source has one translation. All formats of a day fall in the same split.
    """
    head, chosen = source_options(text, {"count": 10_000, "seed": 0})
    count = between_option("count", chosen["count"], 1, len(FORMATS) * (_LAST - _FIRST + 1))
    write_source, write_target = (_writer(locale) for locale in _two(head, "dates:en-fr"))
    drawn = random.Random(chosen["seed"]).sample(range(_FIRST * len(FORMATS), (_LAST + 1) * len(FORMATS)), count)
    made: list[Row] = []
    for number in drawn:
        day, form = datetime.date.fromordinal(number // len(FORMATS)), number % len(FORMATS)
        source = write_source(day, FORMATS[form])
        form = next(longer for longer in range(form + 1) if longer == form or write_source(day, FORMATS[longer]) == source)
        made.append((day.isoformat(), source, write_target(day, FORMATS[form])))
    return list(dict.fromkeys(made))


def _writer(name: str) -> Callable[[datetime.date, str], str]:
    if name == "iso":
        return lambda day, form: day.isoformat()
    with extra("data"):
        from babel.core import Locale, UnknownLocaleError
        from babel.dates import format_date
        from babel.localedata import locale_identifiers

    try:
        locale = Locale.parse(name)
    except (UnknownLocaleError, ValueError):
        near = difflib.get_close_matches(name, sorted(locale_identifiers()), cutoff=0.4)  # there are a thousand
        raise UnknownName("locale", name, near or ["iso", "en", "fr", "de", "ja"]) from None
    return lambda day, form: " ".join(format_date(day, form, locale).split())


def digits(text: str, part: Callable[[str], str], step: int = 1) -> list[Row]:
    """Random digits to copy, or with step −1 to reverse: the smallest task that shows what a translator attends to.

    Copying runs along the diagonal, reversing across it: attention that assumes the order of the source can do the first only.
    """
    head, chosen = source_options(text, {"count": 10_000, "seed": 0})
    first, _, last = head.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or not 1 <= int(first) <= int(last or first):
        raise NotSupported(f"{head!r}: give the shortest and the longest length, as in reverse:10-16")
    generator, lengths = random.Random(chosen["seed"]), range(int(first), int(last or first) + 1)
    made = []
    for _ in range(between_option("count", chosen["count"], 1, 10_000_000)):
        drawn = [str(generator.randrange(10)) for _ in range(lengths[generator.randrange(len(lengths))])]
        made.append((" ".join(drawn), " ".join(drawn), " ".join(drawn[::step])))
    return made


def docstrings(text: str, part: Callable[[str], str]) -> list[Row]:
    """Docstrings of installed packages and their first lines: see `docstring_pairs`."""
    head, chosen = source_options(text, {"count": 0})
    return docstring_pairs.docstrings(head or "installed", between_option("count", chosen["count"], 0, docstring_pairs.MOST))


def names(text: str, part: Callable[[str], str]) -> list[Row]:
    """Names to copy from texts: see `copying`."""
    head, chosen = source_options(text, {"count": 5000, "pool": 2000, "seed": 0})
    pool, count = between_option("pool", chosen["pool"], 100, 100_000), between_option("count", chosen["count"], 1, 10_000_000)
    return copying.names(_number(head, "names:20"), count, pool, chosen["seed"], part)


def events(text: str, part: Callable[[str], str]) -> list[Row]:
    """Facts to copy from texts: see `copying`."""
    head, chosen = source_options(text, {"count": 5000, "seed": 0})
    number, count = between_option("events", _number(head, "events:8"), 1, 1000), between_option("count", chosen["count"], 1, 10_000_000)
    return copying.events(number, count, chosen["seed"])


def reports(text: str, part: Callable[[str], str]) -> list[Row]:
    """Match reports and their headlines: see `matches`."""
    _, chosen = source_options(f",{text}" if text else "", {"count": 5000, "seed": 0})
    return matches.matches(between_option("count", chosen["count"], 1, 10_000_000), chosen["seed"], part)


def gettext(text: str, part: Callable[[str], str]) -> list[Row]:
    """Messages that programs installed on this machine show to their users, in English and in another language.

    Catalogues are the `.mo` files of gettext, looked for below the data folders of the system (XDG_DATA_DIRS), of this Python,
    and of its installed packages: `<anywhere>/fr/LC_MESSAGES/<program>.mo`; `fr` takes `fr` and `fr_FR`, `fr_CA` only itself.
    What there is depends on the machine: keep `Parallel.digest` beside a result. More comes with `pip install django sphinx`.

    Kept: messages with two letters in a row on both sides, that differ, of at most 60 words per side; of plurals the first form. Runs of
    white space become one space; placeholders such as %(name)s and mnemonics such as _File stay as they are.
    """
    if not re.fullmatch(r"[A-Za-z]{2,3}([_@][A-Za-z]+)*", text):
        raise NotSupported(f"{text!r}: give one language, as in gettext:fr or gettext:pt_BR; the other side is English")
    found = catalogues(text)
    if not found:
        raise MissingFile(f"no gettext catalogue for {text!r} on this machine; pip install django, or a language pack, brings some")
    made: dict[Row, None] = {}
    for path in found:
        try:
            for source, target in messages(path):
                source, target = " ".join(source.split()), " ".join(target.split())
                if _usable(source) and _usable(target) and source != target:
                    made[source, source, target] = None
        except BadFile:
            continue  # a damaged file of another program: the user need not repair it
    return list(made)


def catalogues(language: str, roots: list[Path] | None = None) -> list[Path]:
    """The .mo files of a language below the roots, sorted by program, then by path."""
    names = {language, f"{language}_{language.upper()}"}
    found = set()
    for root in _roots() if roots is None else roots:
        for folder, below, files in os.walk(root):
            below.sort()
            here = Path(folder)
            if here.name == "LC_MESSAGES" and here.parent.name.partition(".")[0] in names:
                found |= {(here / name).resolve() for name in files if name.endswith(".mo")}
    return sorted(found, key=lambda path: (path.name, path.as_posix()))


def _roots() -> list[Path]:
    shared = os.environ.get("XDG_DATA_DIRS") or os.pathsep.join(("/usr/local/share", "/usr/share"))
    folders = [Path(folder) / "locale" for folder in (*shared.split(os.pathsep), f"{sys.base_prefix}/share", f"{sys.prefix}/share")]
    packages = [Path(folder) for folder in (*site.getsitepackages(), site.getusersitepackages())]
    return [folder for folder in dict.fromkeys((*folders, *packages)) if folder.is_dir()]


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """(English, translation) of one catalogue: a table of offsets, then strings; the entry of the empty message is the header.

    Not by Babel's `read_mo`: it decodes every catalogue as UTF-8, whatever charset the header names.
    """
    raw = path.read_bytes()
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[raw[:4]]
        _, count, originals, translations = struct.unpack_from(f"{order}4I", raw, 4)
        if count > len(raw) // 16:
            raise BadFile(f"{path}: its header says {count} messages, too many for {len(raw)} bytes")
        pairs = []
        for n in range(count):
            size, at = struct.unpack_from(f"{order}2I", raw, originals + 8 * n)
            size_t, at_t = struct.unpack_from(f"{order}2I", raw, translations + 8 * n)
            pairs.append((raw[at : at + size], raw[at_t : at_t + size_t]))
        header = dict(pairs).get(b"", b"").decode("ascii", "replace")
        named = re.search(r"charset=([\w.:-]+)", header)
        charset = named[1] if named else "utf-8"
        for source, target in pairs:
            if source:
                source = source.rpartition(b"\x04")[2]  # without its context
                yield source.partition(b"\0")[0].decode(charset), target.partition(b"\0")[0].decode(charset)
    except (KeyError, struct.error, LookupError, UnicodeDecodeError) as wrong:
        raise BadFile(f"{path}: not a gettext catalogue: {wrong!r}") from wrong


def _usable(text: str) -> bool:
    return "\0" not in text and re.search(r"[^\W\d_]{2}", text) is not None and len(text.split()) <= MOST_WORDS


def source_options(text: str, known: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The head (`en-de`) and the options given, with the defaults of those that were not: integers, or words where the default is one."""
    head, *given = (part.strip() for part in text.split(","))
    chosen = dict(known)
    for part in given:
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise UnknownName("option of this source", name, known)
        try:
            chosen[name] = type(known[name])(value)
        except ValueError:
            raise NotSupported(f"{part!r}: expected an integer, as in {name}={known[name]}") from None
    return head, chosen


def between_option(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise NotSupported(f"{name}={value}: expected {low:,} to {high:,}")
    return value


def _number(text: str, example: str) -> int:
    if not text.isdecimal():
        raise NotSupported(f"{text!r}: expected a number of words, as in {example}")
    return int(text)


def _two(head: str, example: str) -> tuple[str, str]:
    """`en-de` as two names."""
    names = head.split("-")
    if len(names) != 2 or not all(names):
        raise NotSupported(f"{head!r}: give two languages with a hyphen between them, as in {example}")
    return names[0], names[1]


SOURCES: dict[str, Callable[[str, Callable[[str], str]], list[Row]]] = {
    "numbers": numbers,
    "dates": dates,
    "gettext": gettext,
    "docstrings": docstrings,
    "names": names,
    "events": events,
    "matches": reports,
    "copy": digits,
    "reverse": partial(digits, step=-1),
}

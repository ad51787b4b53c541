"""Pairs of sentences, source and target: from the user's files, or from embedded sources.

    read_pairs(("train.en", "train.de"))             two files, line by line; also as one string "train.en train.de"
    read_pairs("pairs.tsv")                          columns 1 and 2 (.tsv, .tab, .txt, .csv); fields=("en", "de") names them by a header
                                                     line, ("2", "3") by number
    read_pairs("pairs.jsonl", fields=("en", "de"))   an object per line, or .parquet; "translation.en" is a nested field
    read_pairs("hf:folder", fields=("en", "de"))     a dataset of the `datasets` library on this machine
    read_pairs("numbers:en-de")                      embedded sources: numbers, dates, gettext, copy, reverse

A first line such as `source target` or `en de` is a header, and counted among the skipped. Every text file may end in .gz or .xz. `valid` and `test` name files or sources in the same forms; a part that is not named is split from the
training pairs by a hash of the source sentence, so that copies of a sentence are never on both sides.

Malformed pairs: an empty line, a NUL byte, invalid UTF-8, a line above `longest` bytes, a missing column or field, text
that is not JSON. `on_error="stop"` raises at the first, with file and line; `on_error="skip"` skips the pair, and `Parallel.skipped`
counts them by reason. Errors of a whole file always raise: missing, empty, a damaged archive, unequal numbers of lines.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from .._extras import extra
from ..errors import BadFile, MissingFile, NotSupported, UnknownName
from .arrow import PREFIX, is_dataset
from .lines import (
    CSV,
    LONGEST,
    OBJECTS,
    Fault,
    Policy,
    Skipped,
    cells,
    check_file,
    lines,
    no_text,
    objects,
    plain_suffix,
    reach,
    unwritable,
)
from .pairs import PairStore
from .sources import SOURCES
from .splits import PARTS, SHARES, Pair, Row, Splits, choose_parts, digest, part_of, place

Spec = str | Path | Sequence[str | Path]
_TABLES = (".tsv", ".tab", ".txt", CSV)
Names = tuple[
    Sequence[str], Sequence[str]
]  # of the fields or columns of source and target, in lower case; the first that is there is taken
SIDES: Names = (("source", "src"), ("target", "tgt", "trg"))
ARTICLES: Names = (
    ("article", "document", "text", "body", "content", "dialogue", "story", "source"),
    ("summary", "highlights", "abstract", "headline", "title", "target"),
)


def leaked(pairs: Splits[Sequence[Pair]]) -> int:
    """Number of pairs of valid and test whose source is in train too: 0 unless the user's own splits overlap.

    Args:
        pairs: Splits as `read_pairs` gives them.
    """
    seen = {source for source, _ in pairs.train}
    return sum(source in seen for part in (pairs.valid, pairs.test) for source, _ in part)


def read_pairs(
    spec: Spec,
    *,
    valid: Spec | None = None,
    test: Spec | None = None,
    fields: tuple[str, str] | None = None,
    on_error: Policy = "stop",
    longest: int = LONGEST,
    shares: tuple[float, float] = SHARES,
    names: Names = SIDES,
) -> Splits[Sequence[Pair]]:
    """The pairs of `spec`, in three parts. `shares` are those of validation and test where they are not named; `names` are tried for `fields`.

    Args:
        spec: file, two files, folder, dataset or generated source.
        valid: validation pairs; held out of `spec` if not given.
        test: test pairs; held out of `spec` if not given.
        fields: names or numbers of the columns of source and target.
        on_error: stop at malformed lines, or skip them.
        longest: bytes of the longest line.
        shares: fractions held out for validation and test.
        names: names of columns that are tried without `fields`.
    """
    shares = (0.0 if valid is not None else shares[0], 0.0 if test is not None else shares[1])
    if fields is not None and len(fields) != 2:
        raise NotSupported(f"fields {' '.join(fields)}: expected two, that of the source and that of the target")
    skipped, part = Skipped(on_error=on_error), part_of(shares)
    store, places = PairStore(), array("d")
    for key, source, target in _rows(spec, part, fields, names, longest, skipped):
        store.append(source, target)
        places.append(place(key))
    chosen = choose_parts(np.array(places), shares)
    made: dict[str, Sequence[Pair]] = {name: store.select(np.flatnonzero(chosen == n)) for n, name in enumerate(PARTS)}
    for name, other in (("valid", valid), ("test", test)):
        if other is not None:
            store = PairStore()
            for _, source, target in _rows(other, part, fields, names, longest, skipped):
                store.append(source, target)
            made[name] = store.select(np.arange(len(store)))
    parts = made["train"], made["valid"], made["test"]
    return Splits(*parts, skipped, digest(_contents(parts)))


def _contents(parts: Sequence[Sequence[Pair]]) -> Iterator[bytes]:
    for part in parts:
        yield from (f"{source}\t{target}\n".encode() for source, target in part)
        yield b"\n"


def _rows(
    spec: Spec, part: Callable[[str], str], fields: tuple[str, str] | None, names: Names, longest: int, skipped: Skipped
) -> Iterable[Row]:
    files = _files(spec)
    if isinstance(files, str) and not is_dataset(files):
        name, _, rest = files.partition(":")
        return SOURCES[name](rest, part)
    return _of_files(files, fields, names, longest, skipped)


def _of_files(files: str | list[Path], fields: tuple[str, str] | None, names: Names, longest: int, skipped: Skipped) -> Iterator[Row]:
    if isinstance(files, str) or (plain_suffix(files[0]) in OBJECTS and len(files) == 1):
        found = _objects(files if isinstance(files, str) else files[0], fields, names, longest)
    elif len(files) == 2:
        found = _two_files(files[0], files[1], longest)
    elif plain_suffix(files[0]) in _TABLES:
        found = _table(files[0], fields, names, longest)
    else:
        raise BadFile(
            f"{files[0]}: one file of pairs ends in {', '.join((*_TABLES, *OBJECTS))} (text also in .gz, .xz after that); "
            "for plain text name two files, source and target"
        )
    before, empty = len(skipped), True
    for source, target in skipped.sound(found):
        empty = False
        yield source, source, target
    if empty:
        where = files if isinstance(files, str) else " and ".join(map(str, files))
        raise BadFile(f"{where}: no pair of sentences in it{f'; {skipped}' if len(skipped) > before else ''}")


def _files(spec: Spec) -> str | list[Path]:
    """One path, two paths, or the name of an embedded source as it is."""
    if isinstance(spec, str):
        name, colon, _ = spec.partition(":")
        if is_dataset(spec) or (colon and name in SOURCES):
            return spec
        if not Path(spec).exists():
            if colon and name.isalpha() and len(name) > 1 and "/" not in spec:
                raise UnknownName("data source", name, [*SOURCES, PREFIX[:-1]])
            if len(spec.split()) == 2:
                return [Path(name) for name in spec.split()]
        spec = [spec]
    if not isinstance(spec, Path) and len(spec) == 1 and isinstance(spec[0], str) and ":" in spec[0]:
        return _files(spec[0])
    files = [Path(name) for name in ([spec] if isinstance(spec, Path) else spec)]
    if len(files) not in (1, 2):
        raise NotSupported(f"{len(files)} files given; pairs come from one file (TSV, CSV, JSONL, Parquet) or two (source, target)")
    for path in files:
        if not path.exists():
            raise MissingFile(
                f"{path}: no such file; check the name, or take an embedded source: {', '.join(SOURCES)}, as in numbers:en-de"
            )
        if path.is_dir():
            raise BadFile(f"{path}: is a folder; name the files inside it: one file of pairs, or two of lines")
        check_file(path)
    return files


def _two_files(source: Path, target: Path, longest: int) -> Iterator[Pair | Fault]:
    counts = [0, 0]
    for s, t in zip_longest(lines(source, longest), lines(target, longest)):
        counts[0] += s is not None
        counts[1] += t is not None
        if s is None or t is None:
            continue  # read to the end, to say how many
        fault = s if isinstance(s, Fault) else t
        yield fault if isinstance(fault, Fault) else (str(s).strip(), str(t).strip())
    if counts[0] != counts[1]:
        short, (few, many) = (target if counts[0] > counts[1] else source), sorted(counts)
        raise BadFile(
            f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}: line {few + 1:,} of {many:,} has no partner in {short}; "
            "line n of one must translate line n of the other, so find where they part"
        )


def _table(path: Path, fields: tuple[str, str] | None, names: Names, longest: int) -> Iterator[Pair | Fault]:
    columns, numbered = (0, 1), False
    if fields is not None and all(name.isdecimal() and int(name) for name in fields):
        columns, fields, numbered = (int(fields[0]) - 1, int(fields[1]) - 1), None, True
    for number, (where, row) in enumerate(cells(path, longest)):
        if isinstance(row, Fault):
            if number == 0 and fields is not None:
                raise BadFile(f"{row.where}: {row.what} where the header with {fields[0]!r} and {fields[1]!r} should be")
            yield row
        elif number == 0 and fields is not None:
            missing = [name for name in fields if name not in row]
            if missing:
                raise BadFile(f"{where}: no column called {missing[0]!r}; the header has {', '.join(map(repr, row))[:200]}")
            columns = (row.index(fields[0]), row.index(fields[1]))
        elif number == 0 and not numbered and (header := _columns(row, names)):
            columns = header
            yield Fault(where, "header line", f"{row[columns[0]]}, {row[columns[1]]}", harmless=True)
        elif len(row) <= max(columns):
            detail = f"{len(row)}, expected at least {max(columns) + 1}"
            between = "comma" if plain_suffix(path) == CSV else "tab"
            yield Fault(where, "too few columns", detail, f"separate source and target by a {between}")
        elif not all(row[c] for c in columns):
            yield Fault(where, "empty column")
        elif number == 0 and _is_header([row[c] for c in columns], names):
            yield Fault(where, "header line", f"{row[columns[0]]}, {row[columns[1]]}", harmless=True)
        else:
            yield row[columns[0]], row[columns[1]]


def _columns(row: Sequence[str], names: Names) -> tuple[int, int] | None:
    """The columns that a header line names, if it is one."""
    lower = [cell.lower() for cell in row]
    found = [next((lower.index(name) for name in side if name in lower), None) for side in names]
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _is_header(chosen: Sequence[str], names: Names) -> bool:
    """`source target`, or two codes of languages, such as `en de`."""
    with extra("data"):
        from babel import Locale

    if _columns(chosen, names) == (0, 1):
        return True
    source, target = (cell.lower() for cell in chosen)
    languages = Locale("en").languages
    return source != target and all(len(code) == 2 and code in languages for code in (source, target))


def _objects(path: Path | str, fields: tuple[str, str] | None, names: Names, longest: int) -> Iterator[Pair | Fault]:
    for where, described in objects(path, longest):
        if isinstance(described, Fault):
            yield described
            continue
        chosen = fields or _fields(described, names)
        texts = [reach(described, name) for name in chosen]
        lacking = [name for name, text in zip(chosen, texts, strict=True) if not isinstance(text, str)]
        if lacking:
            yield no_text(where, lacking[0], described, f"name the two with --fields, the {names[0][0]} first")
            continue
        source, target = (" ".join(str(text).splitlines()).strip() for text in texts)
        faults = (unwritable(where, text) if text else Fault(where, "empty field") for text in (source, target))
        yield next(filter(None, faults), (source, target))


def _fields(described: object, names: Names) -> list[str]:
    """The names that an object has for source and target; the usual ones where it has none."""
    lower = {str(key).lower(): str(key) for key in described} if isinstance(described, dict) else {}
    return [next((lower[name] for name in side if name in lower), side[0]) for side in names]

"""Pairs of sentences, source and target: from the user's files, or from embedded sources.

    read_pairs(("train.en", "train.de"))             two files, line by line; also as one string "train.en train.de"
    read_pairs("pairs.tsv")                          columns 1 and 2 (.tsv, .tab, .txt); fields=("en", "de") names them by a header line
    read_pairs("pairs.jsonl", fields=("en", "de"))   an object per line; "translation.en" is a nested field
    read_pairs("numbers:en-de")                      embedded sources: numbers, dates, gettext, copy, reverse

Every file may end in .gz or .xz. `valid` and `test` name files or sources in the same forms; a part that is not named is split from the
training pairs by a hash of the source sentence, so that copies of a sentence are never on both sides.

Malformed pairs: an empty line, a NUL byte, invalid UTF-8, a line above `longest` bytes, a missing column or field, text
that is not JSON. `on_error="stop"` raises at the first, with file and line; `on_error="skip"` skips the pair, and `Parallel.skipped`
counts them by reason. Errors of a whole file always raise: missing, empty, a damaged archive, unequal numbers of lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from ..errors import BadFile, MissingFile, NotSupported, UnknownName
from .lines import LONGEST, OBJECTS, Fault, Policy, Skipped, lines, no_text, objects, plain_suffix, reach, unwritable
from .sources import SOURCES
from .splits import SHARES, Pair, Row, part_of, split

Spec = str | Path | Sequence[str | Path]
_TABLES = (".tsv", ".tab", ".txt")


@dataclass(frozen=True)
class Parallel:
    """Pairs for training, validation and test, and what was skipped."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    skipped: Skipped = field(default_factory=Skipped)

    @property
    def digest(self) -> str:
        """A hash of all pairs: equal data, equal digest."""
        whole = hashlib.blake2b(digest_size=8)
        for part in (self.train, self.valid, self.test):
            for source, target in part:
                whole.update(f"{source}\t{target}\n".encode())
            whole.update(b"\n")
        return whole.hexdigest()

    @property
    def leaked(self) -> int:
        """Number of pairs of valid and test whose source is in train too: 0 unless the user's own splits overlap."""
        seen = {source for source, _ in self.train}
        return sum(source in seen for source, _ in (*self.valid, *self.test))

    def __str__(self) -> str:
        return f"{len(self.train):,} pairs to train on, {len(self.valid):,} for validation, {len(self.test):,} for test"


def read_pairs(
    spec: Spec,
    *,
    valid: Spec | None = None,
    test: Spec | None = None,
    fields: tuple[str, str] | None = None,
    on_error: Policy = "stop",
    longest: int = LONGEST,
    shares: tuple[float, float] = SHARES,
) -> Parallel:
    """The pairs of `spec`, in three parts. `shares` are those of validation and test where they are not named."""
    shares = (0.0 if valid is not None else shares[0], 0.0 if test is not None else shares[1])
    skipped, part = Skipped(on_error=on_error), part_of(shares)
    made = split(_rows(spec, part, fields, longest, skipped), shares)
    for name, other in (("valid", valid), ("test", test)):
        if other is not None:
            made[name] = [(s, t) for _, s, t in _rows(other, part, fields, longest, skipped)]  # type: ignore[index]
    return Parallel(made["train"], made["valid"], made["test"], skipped)


def _rows(spec: Spec, part: Callable[[str], str], fields: tuple[str, str] | None, longest: int, skipped: Skipped) -> list[Row]:
    files = _files(spec)
    if isinstance(files, str):
        name, _, rest = files.partition(":")
        return SOURCES[name](rest, part)
    if len(files) == 2:
        found = _two_files(files[0], files[1], longest)
    elif plain_suffix(files[0]) in _TABLES:
        found = _table(files[0], fields, longest)
    elif plain_suffix(files[0]) in OBJECTS:
        found = _objects(files[0], fields or ("source", "target"), longest)
    else:
        raise BadFile(
            f"{files[0]}: one file of pairs ends in {', '.join((*_TABLES, *OBJECTS))} (or such a name with .gz, .xz); "
            "for plain text name two files, source and target"
        )
    rows = [(source, source, target) for source, target in skipped.sound(found)]
    if not rows:
        raise BadFile(f"{' and '.join(map(str, files))}: no pair of sentences in it{f'; {skipped}' if len(skipped) else ''}")
    return rows


def _files(spec: Spec) -> str | list[Path]:
    """One path, two paths, or the name of an embedded source as it is."""
    if isinstance(spec, str):
        name, colon, _ = spec.partition(":")
        if colon and name in SOURCES:
            return spec
        if not Path(spec).exists():
            if colon and name.isalpha() and len(name) > 1 and "/" not in spec:
                raise UnknownName("data source", name, SOURCES)
            if len(spec.split()) == 2:
                return [Path(name) for name in spec.split()]
        spec = [spec]
    files = [Path(name) for name in ([spec] if isinstance(spec, Path) else spec)]
    if len(files) not in (1, 2):
        raise NotSupported(f"{len(files)} files given; pairs come from one file (TSV, JSONL) or two (source, target)")
    for path in files:
        if not path.exists():
            raise MissingFile(
                f"{path}: no such file; check the name, or take an embedded source: {', '.join(SOURCES)}, as in numbers:en-de"
            )
        if path.is_dir():
            raise BadFile(f"{path}: is a folder; name the files inside it: one file of pairs, or two of lines")
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


def _table(path: Path, fields: tuple[str, str] | None, longest: int) -> Iterator[Pair | Fault]:
    columns = (0, 1)
    for number, line in enumerate(lines(path, longest), 1):
        if isinstance(line, Fault):
            if number == 1 and fields is not None:
                raise BadFile(f"{line.where}: {line.what} where the header with {fields[0]!r} and {fields[1]!r} should be")
            yield line
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if number == 1 and fields is not None:
            missing = [name for name in fields if name not in cells]
            if missing:
                raise BadFile(f"{path}, line 1: no column called {missing[0]!r}; the header has {', '.join(map(repr, cells))[:200]}")
            columns = (cells.index(fields[0]), cells.index(fields[1]))
        elif len(cells) <= max(columns):
            detail = f"{len(cells)}, expected at least {max(columns) + 1}"
            yield Fault(f"{path}, line {number:,}", "too few columns", detail, "separate source and target by a tab")
        elif not all(cells[c] for c in columns):
            yield Fault(f"{path}, line {number:,}", "empty column")
        else:
            yield cells[columns[0]], cells[columns[1]]


def _objects(path: Path, fields: tuple[str, str], longest: int) -> Iterator[Pair | Fault]:
    for where, described in objects(path, longest):
        if isinstance(described, Fault):
            yield described
            continue
        texts = [reach(described, name) for name in fields]
        lacking = [name for name, text in zip(fields, texts, strict=True) if not isinstance(text, str)]
        if lacking:
            yield no_text(where, lacking[0], described, "name the two fields with fields=(source, target)")
            continue
        source, target = (" ".join(str(text).splitlines()).strip() for text in texts)
        faults = (unwritable(where, text) if text else Fault(where, "empty field") for text in (source, target))
        yield next(filter(None, faults), (source, target))

"""Lines and rows of a file, one at a time, in bounded memory; a malformed one is yielded as a Fault with the reason."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import stat
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ..errors import BadFile, MissingFile, NotSupported
from .arrow import dataset_rows, is_dataset, parquet_rows

LONGEST = 1 << 16  # bytes of a line, unless the caller says otherwise
Policy = Literal["stop", "skip"]
CSV = ".csv"
PARQUET = ".parquet"
OBJECTS = (".jsonl", ".ndjson", ".json", PARQUET)  # suffixes of files whose fields have names
Item = TypeVar("Item")
_PACKED = (".gz", ".xz")


@dataclass(frozen=True)
class Fault:
    """Why one line, pair or document cannot be used.

    Args:
        where: file and line.
        what: fault in words; equal ones are counted.
        detail: part of the text that is wrong.
        remedy: advice.
        harmless: never stop because of it.
    """

    where: str  # file and line
    what: str  # fault in words; equal ones are counted
    detail: str = ""
    remedy: str = "correct the line"
    harmless: bool = False  # counted, never raised: a header line

    def __str__(self) -> str:
        return f"{self.where}: {self.what}{f' ({self.detail})' if self.detail else ''}; {self.remedy}, or skip it with --on-error skip"


@dataclass
class Skipped:
    """Lines skipped under on_error="skip": counts by reason, and the first few cases in full.

    Args:
        counts: number of cases by reason.
        first: first cases in full.
        unit: name of what is counted.
        on_error: stop at the first fault, or skip it.
        seen: number of cases read.
    """

    counts: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)
    unit: str = "pair"
    on_error: Policy = "stop"
    seen: int = 0  # pairs, lines or documents, good and bad

    def __post_init__(self) -> None:
        if self.on_error not in get_args(Policy):
            raise NotSupported(f'on_error={self.on_error!r}; "stop" raises at the first bad {self.unit}, "skip" counts and omits them')

    def sound(self, found: Iterable[Item | Fault]) -> Iterator[Item]:
        """Yield what is not a fault; count the faults."""
        for one in found:
            self.seen += 1
            if isinstance(one, Fault):
                self.take(one)
            else:
                yield one

    def take(self, fault: Fault) -> None:
        """Under "stop" the fault is raised, unless it is harmless; under "skip" it is counted."""
        if self.on_error == "stop" and not fault.harmless:
            raise BadFile(str(fault))
        self.counts[fault.what] += 1
        if len(self.first) < 5:
            self.first.append(f"{fault.where}: {fault.what}{f' ({fault.detail})' if fault.detail else ''}")

    def refuse(self, wrong: BadFile) -> None:
        """Refuse or count a file that cannot be read."""
        if self.on_error == "stop":
            raise wrong
        self.counts["unreadable"] += 1
        self.first = [*self.first, str(wrong)][:5]

    def add(self, other: Skipped) -> None:
        """Count what was skipped of another source, too."""
        self.counts += other.counts
        self.first = [*self.first, *other.first][:5]
        self.seen += other.seen

    def __len__(self) -> int:
        return self.counts.total()

    def __str__(self) -> str:
        if not len(self):
            return f"no {self.unit} was skipped"
        reasons = ", ".join(f"{n:,} {what}" for what, n in self.counts.most_common())
        of = f" of {self.seen:,}" if self.seen else ""
        return f"{len(self):,}{of} {self.unit}s skipped: {reasons}. First: {'; '.join(self.first)}"


def plain_suffix(path: Path) -> str:
    """The suffix below .gz or .xz."""
    return (path.with_suffix("") if path.suffix in _PACKED else path).suffix


def lines(path: str | Path, longest: int = LONGEST) -> Iterator[str | Fault]:
    """Each line without its end (LF or CRLF); .gz and .xz are decompressed.

    A line of more than `longest` bytes is skipped piece by piece, never held in memory. Faults of a line are yielded in its
    place, so that lines of two files stay aligned; faults of the file (missing, a folder, a damaged archive) raise.
    """
    empty = "write the sentence, or delete the line in both languages"
    for where, line, _ in every_line(path, longest):
        yield line if isinstance(line, Fault) or line.strip() else Fault(where, "empty line", "", empty)


def every_line(path: str | Path, longest: int = LONGEST) -> Iterator[tuple[str, str | Fault, bool]]:
    """(file and line number, the line as in `lines` but possibly empty, whether a line end followed)."""
    path, number = check_file(path), 0
    try:
        with unchanged(path), _opened(path) as file:
            while raw := file.readline(longest + 2):  # 2: the longest line may end in CRLF
                number += 1
                where = f"{path}, line {number:,}"
                ended, first = raw.endswith(b"\n"), number == 1
                body = raw.rstrip(b"\r\n")
                if len(body) > longest or not (ended or len(raw) < longest + 2):
                    while not ended and (more := file.readline(longest)):
                        ended = more.endswith(b"\n")
                    yield where, Fault(where, "line too long", f"more than {longest:,} bytes", "cut it, or raise longest"), ended
                else:
                    yield where, as_text(body.removeprefix(b"\xef\xbb\xbf") if first else body, where), ended
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as wrong:
        raise BadFile(f"{path}, after line {number:,}: the {path.suffix} archive is damaged or cut short ({wrong}); refetch it") from wrong
    except OSError as wrong:
        raise BadFile(f"{path}, after line {number:,}: cannot be read ({wrong}); check its permissions and the disk") from wrong


def whole_file(path: str | Path, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes, decompressed if it ends in .gz or .xz."""
    path = check_file(path)
    try:
        with unchanged(path), _opened(path) as file:
            content = file.read(limit + 1)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as wrong:
        raise BadFile(f"{path}: the {path.suffix} archive is damaged or cut short ({wrong}); refetch it") from wrong
    except OSError as wrong:
        raise BadFile(f"{path}: cannot be read ({wrong}); check its permissions and the disk") from wrong
    if len(content) > limit:
        raise BadFile(f"{path}: more than {limit:,} bytes; split it, or write a question per line into a .jsonl file")
    return content


def cells(path: str | Path, longest: int = LONGEST) -> Iterator[tuple[str, list[str] | Fault]]:
    """(file and line number, the cells of a row, or a Fault) of a table: .csv with quotes, anything else separated by tabs."""
    if plain_suffix(Path(path)) != CSV:
        for number, line in enumerate(lines(path, longest), 1):
            yield f"{path}, line {number:,}", line if isinstance(line, Fault) else [cell.strip() for cell in line.split("\t")]
        return
    faults: dict[int, Fault] = {}

    def text() -> Iterator[str]:
        for number, (_, line, _) in enumerate(every_line(path, longest), 1):
            if isinstance(line, Fault):
                faults[number] = line
            yield "\n" if isinstance(line, Fault) else f"{line}\n"

    ahead = text()
    first = list(islice(ahead, 10))
    delimiter = max(",;\t", key=lambda mark: min((line.count(mark) for line in first if line.strip()), default=0))
    csv.field_size_limit(max(csv.field_size_limit(), longest))
    rows = csv.reader(chain(first, ahead), delimiter=delimiter, strict=True)
    while True:
        where = f"{path}, line {rows.line_num + 1:,}"
        try:
            row: list[str] | Fault | None = next(rows, None)
        except csv.Error as wrong:
            row = Fault(where, "not CSV", str(wrong), "check its quotation marks")
        bad = [faults.pop(number) for number in sorted(faults) if number <= rows.line_num]
        yield from ((fault.where, fault) for fault in bad)
        if row is None:
            return
        if isinstance(row, Fault):
            yield where, row
        elif row:
            yield where, [" ".join(cell.split()) for cell in row]
        elif not bad:
            yield where, Fault(where, "empty line", "", "delete it")


def objects(path: str | Path, longest: int = LONGEST) -> Iterator[tuple[str, Any]]:
    """(file and row, an object with named fields, or a Fault) of JSON lines, Parquet, or a dataset of the `datasets` library.

    Args:
        path: file or dataset.
        longest: bytes of the longest line.
    """
    if is_dataset(path):
        yield from dataset_rows(str(path))
        return
    if Path(path).suffix == PARQUET:
        with unchanged(check_file(path)):
            yield from parquet_rows(Path(path))
        return
    for number, line in enumerate(lines(path, longest), 1):
        where = f"{path}, line {number:,}"
        if isinstance(line, Fault):
            yield where, line
            continue
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as wrong:
            yield where, Fault(where, "not JSON", str(wrong)[:100], "write one object per line")


def reach(described: Any, name: str) -> Any:
    """A field by its name, or None; dots name nested fields."""
    if isinstance(described, dict) and name in described:
        return described[name]
    first, dot, rest = name.partition(".")
    return reach(described[first], rest) if dot and isinstance(described, dict) and first in described else None


def no_text(where: str, name: str, described: Any, remedy: str) -> Fault:
    """The fault of a field that is missing or no text."""
    has = ", ".join(map(repr, described))[:200] if isinstance(described, dict) else type(described).__name__
    return Fault(where, f"no text in field {name!r}", f"found {has}", remedy)


def unwritable(where: str, text: str) -> Fault | None:
    """The fault of text that JSON can represent and a text file cannot: NUL, lone surrogates."""
    if "\0" in text:
        return Fault(where, "NUL byte")
    try:
        text.encode()
    except UnicodeEncodeError:
        return Fault(where, "half a surrogate pair")
    return None


def check_file(path: str | Path) -> Path:
    """The path, if it is a file that can be read more than once."""
    path = Path(path)
    if not path.exists():
        raise MissingFile(f"{path}: no such file; check the name; it was looked for in {path.absolute().parent}")
    if path.is_dir():
        raise BadFile(f"{path}: is a folder; name the files inside it")
    if not stat.S_ISREG(path.stat().st_mode):
        raise BadFile(f"{path}: is a pipe or a device, which can be read only once; save its contents to a file and name that")
    return path


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Raise if the file is not the same after reading as before."""
    before = state_of(path)
    yield
    if state_of(path) != before:
        raise BadFile(f"{path}: changed while it was read; start again once nothing else writes to it")


def state_of(path: Path) -> tuple[int, int, int]:
    """Identify the version of a file: number, size and time of the last change; zeros if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def _opened(path: Path) -> gzip.GzipFile | lzma.LZMAFile | BufferedReader:
    if path.suffix == ".gz":
        return gzip.GzipFile(path, "rb")
    return lzma.LZMAFile(path) if path.suffix == ".xz" else path.open("rb")


def as_text(body: bytes, where: str) -> str | Fault:
    """UTF-8 as text."""
    if b"\0" in body:
        return Fault(where, "NUL byte", f"byte {body.index(0) + 1}", "save the file as UTF-8 text (UTF-16 looks like this)")
    try:
        return body.decode()
    except UnicodeDecodeError as wrong:
        detail = f"byte {wrong.start + 1} is 0x{body[wrong.start]:02x}"
        return Fault(where, "not UTF-8", detail, "convert the file to UTF-8")

r"""Documents of plain text: from the user's files, or from embedded sources.

    Texts("python-docs")                     CPython's own documentation, a document per topic
    Texts("book.txt")                        a document per file; separator="<|endoftext|>" ends one at each such line, "" at blank lines
    Texts("pages.jsonl", field="body.text")  an object and document per line (.jsonl, .ndjson, .json), or per row (.parquet, .csv)
    Texts("hf:folder")                       a dataset of the `datasets` library on this machine, a document per row
    Texts("folder", suffixes=(".md",))       all files below it with these suffixes, in the order of their names
    Texts(["a.txt", "b.jsonl", "folder"])    one after the other

Every file may end in .gz or .xz. No large file is held in memory: text comes in pieces, split at line ends that no token spans (`\S\n\S`) if there
are any, so that pieces give the tokens that the whole would. A text of up to `SAMPLE` characters is read once and kept; of a larger one, which is
read again, a sample is kept for the tokenizer.

Parts: `valid` and `test` name texts in the same forms. A part that is not named is split off: of `FEW` documents and more, some documents, in the
order of a hash of how they begin, until they hold the share of the text (copies are never on both sides); of fewer, the end of the text.

Malformed lines: a NUL byte, invalid UTF-8, more than `longest` bytes; in JSON lines also text that is not JSON and a missing field.
`on_error="stop"` raises at the first, with file and line; `on_error="skip"` skips the line, and `skipped` counts them by reason.
Documents of white space only are skipped. Errors of a whole file always raise: missing, a damaged archive; a file that changed between two
readings.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, MissingFile, NotSupported
from .arrow import dataset_state, is_dataset
from .lines import (
    CSV,
    OBJECTS,
    Fault,
    Policy,
    Skipped,
    cells,
    check_file,
    every_line,
    no_text,
    objects,
    plain_suffix,
    reach,
    state_of,
    unwritable,
)
from .pace import Pace
from .splits import PARTS, SHARES, Part, choose_amounts, part_of

Spec = str | Path | Sequence[str | Path]
SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson", ".parquet")  # files of a folder that are read by default
EMBEDDED = ("python-docs",)
LONGEST = 1 << 24  # bytes of a line: a document of JSON lines is one
PIECE = 1 << 18  # characters of a piece, about
SAMPLE = 1 << 26  # characters that are kept, and that a tokenizer is trained on, about
FEW = 20  # documents: below this, parts are split by position


class Piece(NamedTuple):
    """A piece of text, and whether it starts and ends a document."""

    part: Part
    begins: bool
    ends: bool
    text: str


@dataclass(frozen=True)
class Survey:
    """The result of reading everything once."""

    digest: str  # a hash of all text and document boundaries
    place_D: npt.NDArray[np.float64]  # hash of each document of the first source, as a number from 0 to 1
    characters_D: npt.NDArray[np.int64]


class Reading(NamedTuple):
    """A piece of the training source as it is read."""

    document: int
    at: int  # where it begins in the whole text
    begins: bool
    ends: bool
    text: str


class Texts:
    """Documents in three parts, read from their files when they are used.

    Args:
        spec: files, folders, dataset or generated source.
        valid: validation documents; held out of `spec` if not given.
        test: test documents; held out of `spec` if not given.
        field: field of JSON lines that holds the text.
        separator: line between two documents of a text file; None: a file is a document.
        suffixes: suffixes of the files of a folder that are read.
        on_error: stop at malformed documents, or skip them.
        longest: bytes of the longest line.
        shares: fractions held out for validation and test.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        valid: Spec | None = None,
        test: Spec | None = None,
        field: str = "text",
        separator: str | None = None,
        suffixes: Sequence[str] = SUFFIXES,
        on_error: Policy = "stop",
        longest: int = LONGEST,
        shares: tuple[float, float] = SHARES,
    ):
        self.field, self.separator, self.on_error, self.longest = field, separator, on_error, longest
        self.shares = (0.0 if valid is not None else shares[0], 0.0 if test is not None else shares[1])
        part_of(self.shares)  # checks them
        named: dict[Part, Spec | None] = {"train": spec, "valid": valid, "test": test}
        self.files = {part: _files(given, tuple(suffixes)) for part, given in named.items() if given is not None}
        self.skipped = Skipped(unit="line", on_error=on_error)
        self._states: dict[Path, tuple[int, int, int]] = {}  # of files that have been read
        self._kept: list[Reading] = []  # of the training source, by the survey
        self._whole = False  # they are all of it

    def pieces(self) -> Iterator[Piece]:
        """All text, part by part within each source. A text split by position starts a new document after the split, without ending the one before."""
        survey = self.survey  # which keeps short texts
        readings = self._kept if self._whole else self._readings(Skipped(on_error=self.on_error))
        yield from self._split(readings, survey)
        for part in list(self.files)[1:]:
            for begins, ends, text in self._read(part, Skipped(on_error=self.on_error)):
                yield Piece(part, begins, ends, text)

    def train(self) -> Iterator[str]:
        """The training text, piece by piece, as `Tokenizer.train` takes it."""
        return (piece.text for piece in self.pieces() if piece.part == "train")

    def sample(self) -> Iterator[str]:
        """The training text, or of a large one pieces from all over it: enough to train a tokenizer on."""
        survey = self.survey  # which keeps them
        return (piece.text for piece in self._split(self._kept, survey) if piece.part == "train")

    @cached_property
    def survey(self) -> Survey:
        """Read everything once, and keep a sample."""
        whole, places, counts = hashlib.blake2b(digest_size=16), array("d"), array("q")
        pace, kept, at, _ = Pace("reading", self.size), _Kept(), 0, self.signature
        for part in self.files:
            for begins, ends, text in self._read(part, self.skipped):
                raw = text.encode()
                pace.add(len(raw))
                whole.update(b"\0" * begins + raw)  # no text holds a NUL
                if part != "train":
                    continue
                if begins:
                    places.append(int.from_bytes(hashlib.blake2b(raw, digest_size=6).digest()) / 2**48)
                    counts.append(0)
                kept.add(Reading(len(counts) - 1, at, begins, ends, text))
                counts[-1] += len(text)
                at += len(text)
            whole.update(b"\0\0")
        if not counts:
            raise BadFile(f"{_shown(self.files['train'])}: no text in it{f'; {self.skipped}' if len(self.skipped) else ''}")
        self._kept, self._whole = kept.readings, kept.every == 1
        return Survey(whole.hexdigest(), np.array(places), np.array(counts, dtype=np.int64))

    @property
    def size(self) -> int:
        """Bytes of all files; 0 if some are compressed or are none."""
        files = [path for some in self.files.values() for path in some]
        sizes = [path.stat().st_size if isinstance(path, Path) and path.suffix not in (".gz", ".xz", ".parquet") else 0 for path in files]
        return sum(sizes) if all(sizes) else 0

    @property
    def options(self) -> dict[str, object]:
        """Options that decide how the text is split, besides the files."""
        shown: dict[str, object] = {"field": self.field, "separator": self.separator, "on_error": self.on_error, "longest": self.longest}
        return shown | {"shares": list(self.shares), "named": list(self.files)}

    @cached_property
    def signature(self) -> list[list[object]]:
        """Names, sizes and times of the files before they are read: while they are the same, the text is."""
        return [[part, *_signature(path)] for part, files in self.files.items() for path in files]

    def _cuts(self, characters_D: npt.NDArray[np.int64]) -> list[int]:
        """Offsets in the whole text where validation and test start."""
        total, (valid, test) = int(characters_D.sum()), self.shares
        return [int(total * (1 - valid - test)), int(total * (1 - test))]

    def _chosen(self, survey: Survey) -> npt.NDArray[np.int8] | None:
        """The part of each document; None where parts are split by position."""
        place_D = survey.place_D
        valid, test = self.shares
        if valid == test == 0:
            return np.zeros(len(place_D), dtype=np.int8)
        if len(place_D) < FEW:
            return None
        return choose_amounts(place_D, survey.characters_D, self.shares)

    def _readings(self, skipped: Skipped) -> Iterator[Reading]:
        document, at = -1, 0
        for begins, ends, text in self._read("train", skipped):
            document += begins
            yield Reading(document, at, begins, ends, text)
            at += len(text)

    def _split(self, readings: Iterable[Reading], survey: Survey) -> Iterator[Piece]:
        """Pieces of the parts of the training source: by document, or by position of few documents."""
        edges, parts = self._cuts(survey.characters_D), self._chosen(survey)
        for document, at, begins, ends, text in readings:
            if parts is not None:
                yield Piece(PARTS[parts[document]], begins, ends, text)
                continue
            while text:
                place = int(np.searchsorted(edges, at, side="right"))
                cut = text[: edges[place] - at] if place < len(edges) else text
                anew = begins or at in edges
                text, at, begins = text[len(cut) :], at + len(cut), False
                yield Piece(PARTS[place], anew, ends and not text, cut)

    def _read(self, part: Part, skipped: Skipped) -> Iterator[tuple[bool, bool, str]]:
        """(begins a document, ends it, text) of one source."""
        for path in self.files[part]:
            if isinstance(path, Path) and self._states.setdefault(path, state_of(path)) != state_of(path):
                raise BadFile(f"{path}: has changed since it was first read; start again once nothing else writes to it")
            held: tuple[bool, str] | None = None
            for begins, text in self._pieces_of(path, skipped):
                if held is not None:
                    yield held[0], begins, held[1]
                held = begins, text
            if held is not None:
                yield held[0], True, held[1]

    def _pieces_of(self, path: Path | str, skipped: Skipped) -> Iterator[tuple[bool, str]]:
        """(begins a document, text) of one file."""
        if isinstance(path, str) and not is_dataset(path):
            yield from ((True, text) for text in _embedded())
        elif isinstance(path, str) or plain_suffix(path) in (*OBJECTS, CSV):
            named = isinstance(path, str) or plain_suffix(path) in OBJECTS
            for where, described in objects(path, self.longest) if named else _csv(Path(path), self.field, self.longest):
                skipped.seen += 1
                text = described if isinstance(described, Fault) else reach(described, self.field)
                if text is None or not isinstance(text, str | Fault):
                    text = no_text(where, self.field, described, "name the one that holds the text with --field")
                if isinstance(text, str):
                    text = unwritable(where, text) or text
                if isinstance(text, str):
                    if text.strip():
                        yield True, text
                elif text.what != "empty line":
                    skipped.take(text)
        else:
            yield from self._plain(path, skipped)

    def _plain(self, path: Path, skipped: Skipped) -> Iterator[tuple[bool, str]]:
        begins, blank, kept, size = True, True, list[str](), 0
        for _, line, ended in every_line(path, self.longest):
            skipped.seen += 1
            if isinstance(line, Fault):
                skipped.take(line)
                continue
            if self.separator is not None and line.strip() == self.separator:
                if not blank:
                    yield begins, "".join(kept)
                begins, blank, kept, size = True, True, [], 0
                continue
            smooth = line[:1].strip() and kept and kept[-1][-2:-1].strip()  # one line end alone: no token spans it
            if size >= PIECE and not blank and (smooth or size >= 16 * PIECE):
                yield begins, "".join(kept)
                begins, kept, size = False, [], 0
            kept.append(line + "\n" * ended)
            size += len(line) + ended
            blank = blank and not line.strip()
        if kept and not blank:
            yield begins, "".join(kept)

    def __str__(self) -> str:
        parts, survey = self._chosen(self.survey), self.survey
        counts = "" if parts is None else f" ({', '.join(f'{(parts == n).sum():,} {name}' for n, name in enumerate(PARTS))})"
        return f"{_shown(self.files['train'])}: {len(survey.place_D):,} documents{counts}, {survey.characters_D.sum():,} characters"


class _Kept:
    """Readings from all over a text: every n-th, where n doubles whenever they are too many."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.every, self._seen, self._size = 1, 0, 0

    def add(self, reading: Reading) -> None:
        if self._seen % self.every == 0:
            self.readings.append(reading)
            self._size += len(reading.text)
        self._seen += 1
        while self._size > SAMPLE and len(self.readings) > 1:
            self.readings, self.every = self.readings[::2], 2 * self.every
            self._size = sum(len(one.text) for one in self.readings)


def hash_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _signature(path: Path | str) -> list[object]:
    if is_dataset(path):
        return dataset_state(str(path))
    if isinstance(path, str):
        return [path, len(_embedded()), hash_of("\0".join(_embedded()))]
    return [str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns]


def _embedded() -> list[str]:
    """The topics of `help()`, as this Python has them."""
    from pydoc_data.topics import topics  # type: ignore[import-untyped,unused-ignore]

    return [topics[topic] for topic in sorted(topics)]


def _files(spec: Spec, suffixes: tuple[str, ...]) -> list[Path | str]:
    """Files in order, and names of embedded texts unchanged."""
    if (
        isinstance(spec, str)
        and spec not in EMBEDDED
        and not is_dataset(spec)
        and not Path(spec).exists()
        and all(Path(one).exists() for one in spec.split())
    ):
        spec = spec.split()
    found: list[Path | str] = []
    for one in [spec] if isinstance(spec, str | Path) else spec:
        path = Path(one)
        if one in EMBEDDED or is_dataset(one):
            found.append(str(one))
        elif path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.is_file() and plain_suffix(p) in suffixes)
            if not below:
                raise BadFile(
                    f"{path}: no file below it ends in {', '.join(suffixes)} (or .gz, .xz after that); name those that it has with --suffixes"
                )
            found += below
        elif path.exists():
            found.append(check_file(path))
        else:
            raise MissingFile(f"{path}: no such file or folder; check the name, or take an embedded text: {', '.join(EMBEDDED)}")
    if not found:
        raise NotSupported("no file given; name some, or take an embedded text: " + ", ".join(EMBEDDED))
    return found


def _csv(path: Path, field: str, longest: int) -> Iterator[tuple[str, dict[str, str] | Fault]]:
    """(file and line number, the row by the names in the header line, or a Fault)."""
    header: list[str] | None = None
    for where, row in cells(path, longest):
        if isinstance(row, Fault):
            yield where, row
        elif header is None:
            header = row
            if field not in header:
                raise BadFile(
                    f"{where}: no column called {field!r}; the header has {', '.join(map(repr, row))[:200]}: name one with --field"
                )
        else:
            yield where, dict(zip(header, row, strict=False))


def _shown(files: Sequence[Path | str]) -> str:
    return f"{files[0]}{f' and {len(files) - 1:,} more' if len(files) > 1 else ''}"

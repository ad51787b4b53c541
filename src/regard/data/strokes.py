"""Pen strokes, with the text they write where it is known.

    read_strokes("hershey:scripts")            letters of vector fonts, by writers that do not exist: see `hershey`
    read_strokes("lineStrokes")                a folder of IAM-OnDB, at any depth: an .xml file per line
    read_strokes("sketches.npz")               rows (dx, dy, lifted) of all sequences end to end, and where each begins

| file | what is read |
|---|---|
| `.xml` | `<Stroke>` of `<Point x= y=>`; the text from `<Transcription>` in it, from a .txt file of the same name, or from IAM-OnDB's `ascii` folder |
| `.npz` | `points` and `offset`; or `train`, `train_offset`, and the same of `valid` and `test`, which are then the three parts |
| `.npy` | `name.npy` is the points, `name.offset.npy` the offsets |

Beside arrays, `name.txt` has the texts, a line per sequence, of all parts in order; without it they have none. y points down, as on a page.
A file may be 64 MiB of XML; one with a document type (entities) is refused. `name.npz#valid` is one part of three.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

import numpy as np

from .. import files
from ..errors import BadFile, MissingFile, NotSupported
from .arrays import Array, read_array, read_arrays
from .hershey import Points, hershey
from .lines import Fault, Policy
from .splits import SHARES, Splits, read_splits

MAX_XML = 64 << 20  # bytes
MAX_POINTS = 100_000  # of a sequence
MAX_FILES = 1_000_000
PREFIX = "hershey:"


class Writing(NamedTuple):
    """One line: its text, empty if it is not known, and its points (L, 3): dx, dy, and 1 where the pen is lifted afterwards."""

    text: str
    points: Points

    def key(self) -> str:
        """Key that decides which part it falls in: all of it, so that copies are on the same side."""
        return f"{self.text}\n{self.points.tobytes().hex()}"

    def content(self) -> bytes:
        """All of it, as bytes."""
        return self.text.encode() + b"\n" + self.points.tobytes()


def read_strokes(
    data: str | Path, *, valid: str | Path | None = None, test: str | Path | None = None, shares: tuple[float, float] = SHARES,
    on_error: Policy = "stop", longest: int = MAX_POINTS,
) -> Splits[list[Writing]]:  # fmt: skip
    """Writings in three parts; a part that is not named is that of the file, or split off by a hash of each line. Longer ones are left out."""
    if str(data).endswith(".npz") and Path(data).is_file():
        names = read_arrays(Path(data)).keys()
        valid = f"{data}#valid" if valid is None and shares[0] and "valid" in names else valid
        test = f"{data}#test" if test is None and shares[1] and "test" in names else test

    def found(one: str | Path) -> Iterator[Writing | Fault]:
        for writing in _found(str(one)):
            if isinstance(writing, Writing) and len(writing.points) > longest:
                yield Fault(str(one), "too long", f"{len(writing.points):,} points, the limit is {longest:,}", harmless=True)
            else:
                yield writing

    return read_splits(found, data, valid, test, on_error, shares, Writing.key, content=Writing.content)


def _found(name: str) -> Iterator[Writing | Fault]:
    if name.startswith(PREFIX):
        yield from (Writing(one.text, one.points) for one in hershey(name.removeprefix(PREFIX)))
        return
    path, _, part = name.partition("#") if ".npz#" in name else (name, "", "")
    at = Path(path)
    if not at.exists():
        raise MissingFile(
            f"{path}: no such file or folder; expected strokes as .xml, .npz, .npy, or an embedded source such as hershey:scripts"
        )
    if at.is_dir():
        yield from _folder(at)
    elif at.suffix == ".xml":
        yield _xml(at)
    elif at.suffix == ".npz":
        yield from _npz(at, part)
    elif at.suffix == ".npy":
        points, offset = read_array(at), read_array(at.with_suffix(".offset.npy"))
        yield from _rows(at, points, offset, _texts(at), 0)
    else:
        raise NotSupported(f"{path}: a {at.suffix or 'file without a suffix'}; expected .xml, .npz, .npy, or a folder of .xml files")


# -- arrays ------------------------------------------------------------------------------------------------------------


def _npz(path: Path, part: str) -> Iterator[Writing | Fault]:
    arrays = read_arrays(path)
    part = part or ("points" if "points" in arrays else "train")
    offset_of = {"points": "offset"} | {name: f"{name}_offset" for name in ("train", "valid", "test")}
    if not {part, offset_of.get(part)} <= arrays.keys():
        raise BadFile(f"{path}: holds {', '.join(arrays)}; expected points and offset, or {part} and {part}_offset")
    parts = [name for name in ("train", "valid", "test") if offset_of[name] in arrays]
    first = sum(len(arrays[offset_of[name]]) - 1 for name in parts[: parts.index(part)]) if part in parts else 0
    yield from _rows(path, arrays[part], arrays[offset_of[part]], _texts(path), first)


def _rows(path: Path, points: Array, offset: Array, texts: list[str] | None, first: int) -> Iterator[Writing | Fault]:
    if points.ndim != 2 or points.shape[1] != 3 or points.dtype.kind not in "iuf":
        raise BadFile(f"{path}: points of shape {points.shape} and {points.dtype}; expected (points, 3): dx, dy, lifted")
    if offset.ndim != 1 or offset.dtype.kind not in "iu" or not len(offset) or offset[0] != 0 or offset[-1] != len(points):
        raise BadFile(f"{path}: offsets of shape {offset.shape}; expected whole numbers from 0 to {len(points):,}, one more than sequences")
    starts = offset.astype(np.int64)
    if (np.diff(starts) < 0).any():
        raise BadFile(f"{path}: offsets that fall; expected where each sequence begins, in order")
    if texts is not None and first + len(starts) - 1 > len(texts):
        raise BadFile(f"{path.with_suffix('.txt')}: {len(texts):,} lines; expected one per sequence, {first + len(starts) - 1:,}")
    for n, (begin, end) in enumerate(pairwise(starts.tolist())):
        rows = points[begin:end].astype(np.float32)
        where = f"{path}, sequence {n}"
        if len(rows) < 2:
            yield Fault(where, "fewer than two points", remedy="leave it out")
        elif len(wrong := np.flatnonzero(~np.isfinite(rows).all(1) | ~np.isin(rows[:, 2], (0, 1)))):
            point = ", ".join(f"{x:g}" for x in rows[wrong[0]])
            detail = f"point {wrong[0]} is ({point}); expected finite dx, dy, and 0 or 1 for a lifted pen"
            yield Fault(where, "values that are not strokes", detail, "correct it")
        else:
            rows = rows if not rows[0, :2].any() else np.concatenate([np.zeros((1, 3), np.float32), rows])
            yield Writing("" if texts is None else texts[first + n], rows)


def _texts(path: Path) -> list[str] | None:
    """The lines of the .txt file beside it, if there is one."""
    beside = path.with_suffix(".txt")
    return _text(beside).splitlines() if beside.is_file() else None


def _text(path: Path) -> str:
    try:
        return files.read(path, MAX_XML).decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise BadFile(f"{path}: not text in UTF-8: {wrong}") from wrong


# -- IAM-OnDB ----------------------------------------------------------------------------------------------------------


def _folder(folder: Path) -> Iterator[Writing | Fault]:
    paths = sorted(folder.rglob("*.xml"))
    if not paths or len(paths) > MAX_FILES:
        raise BadFile(f"{folder}: {len(paths):,} .xml files in it or below; expected one per line of handwriting, as in IAM-OnDB")
    yield from map(_xml, paths)


def _xml(path: Path) -> Writing | Fault:
    """The line of one file; without a text it may still be trained on."""
    try:
        strokes, inside = _parse(path)
    except BadFile as wrong:
        return Fault(str(path), "not the XML of strokes", str(wrong).removeprefix(f"{path}: "), "correct the file")
    count = sum(map(len, strokes))
    if not count:
        return Fault(str(path), "no strokes in it", "expected <Stroke> elements of <Point x= y=>", "leave the file out")
    if count < 2 or count > MAX_POINTS:
        return Fault(str(path), f"{'fewer than two' if count < 2 else 'too many'} points", f"{count:,}", "leave the file out")
    every = np.array([point for stroke in strokes for point in stroke], dtype=np.float64)
    lifted = np.concatenate([np.eye(1, len(stroke), len(stroke) - 1)[0] for stroke in strokes])
    offsets = np.column_stack([np.diff(every, axis=0, prepend=every[:1]), lifted]).astype(np.float32)
    beside = path.with_suffix(".txt")
    text = inside or (_text(beside) if beside.is_file() else _ascii(path))
    return Writing(" ".join(text.split()), offsets)


def _ascii(path: Path) -> str:
    """The text of lineStrokes/a01/a01-000/a01-000u-02.xml is the second line after `CSR:` in ascii/a01/a01-000/a01-000u.txt."""
    named = re.fullmatch(r"(.+)-(\d+)", path.stem)
    if named is None or "lineStrokes" not in path.parts:
        return ""
    parts = ["ascii" if part == "lineStrokes" else part for part in path.parts]
    page = Path(*parts).with_name(f"{named[1]}.txt")
    if not page.is_file():
        return ""
    lines = [line.strip() for line in _text(page).partition("CSR:")[2].splitlines() if line.strip()]
    return lines[int(named[2]) - 1] if 0 < int(named[2]) <= len(lines) else ""


def _parse(path: Path) -> tuple[list[list[tuple[float, float]]], str]:
    """The strokes of an .xml file, and the text that it holds itself; nothing but elements and their attributes is looked at."""
    strokes: list[list[tuple[float, float]]] = []
    lines: list[str] = []
    parser = expat.ParserCreate()

    def begin(name: str, attributes: dict[str, str]) -> None:
        if name == "Stroke":
            strokes.append([])
        elif name == "Point" and strokes:
            x, y = float(attributes["x"]), float(attributes["y"])
            if not abs(x) + abs(y) < 1e9:
                raise ValueError(f"a point at {x}, {y}")
            strokes[-1].append((x, y))
        elif name == "TextLine":
            lines.append(attributes.get("text", ""))

    def refuse(*about: object) -> None:
        raise ValueError("it declares a document type, which could define entities; expected none")

    parser.StartElementHandler = begin
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(files.read(path, MAX_XML), True)
    except (expat.ExpatError, ValueError, KeyError) as wrong:
        reason = f"a point without {wrong}" if isinstance(wrong, KeyError) else str(wrong)
        raise BadFile(f"{path}: {reason}") from wrong
    return [stroke for stroke in strokes if stroke], " ".join(lines)

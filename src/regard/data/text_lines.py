"""Texts, one per row of a file: lines, a column of a table, or a field of objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import BadFile
from .arrow import is_dataset
from .examples import NAMES
from .lines import CSV, OBJECTS, Fault, Skipped, cells, every_line, no_text, objects, plain_suffix, reach

TABLES = (".tsv", CSV)
LONGEST = 1 << 20  # bytes of a line


def read_text_rows(path: str | Path, field: str = "", skipped: Skipped | None = None, longest: int = LONGEST) -> Iterator[str]:
    """The texts of a file, in order.

    .txt and others  every line; `field` is the number of a column between tabs, from 1
    .tsv, .csv       the column called `field`, or by number; without it a common name in the header, or the first column
    .jsonl, .parquet, hf:FOLDER   the field called `field`; without it a common name

    Malformed and empty rows stop or are counted, as `skipped` says.
    """
    skipped = Skipped(unit="line") if skipped is None else skipped
    if is_dataset(path) or plain_suffix(Path(path)) in OBJECTS:
        yield from skipped.sound(_fields(path, field, longest))
    elif plain_suffix(Path(path)) in TABLES or field:
        yield from skipped.sound(_columns(Path(path), field, longest))
    else:
        for where, line, _ in every_line(path, longest):
            yield from skipped.sound([line if isinstance(line, Fault) or line.strip() else Fault(where, "empty line", "", "delete it")])


def _fields(path: str | Path, field: str, longest: int) -> Iterator[str | Fault]:
    for where, described in objects(path, longest):
        if isinstance(described, Fault):
            yield described
            continue
        by_lower = {str(key).lower(): str(key) for key in described} if isinstance(described, dict) else {}
        name = field or next((by_lower[one] for one in NAMES[0] if one in by_lower), "text")
        text = reach(described, name)
        yield text if isinstance(text, str) and text.strip() else no_text(where, name, described, "name the field with --field")


def _columns(path: Path, field: str, longest: int) -> Iterator[str | Fault]:
    column: int | None = int(field) - 1 if field.isdecimal() else None
    for where, row in cells(path, longest):
        if isinstance(row, Fault):
            yield row
            continue
        if column is None:  # the first row decides
            lower = [cell.lower() for cell in row]
            named = (
                row.index(field) if field in row else next((lower.index(name) for name in NAMES[0] if not field and name in lower), None)
            )
            if field and named is None:
                raise BadFile(f"{where}: no column called {field!r}; the header has {', '.join(map(repr, row))[:200]}")
            column = named or 0
            if named is not None:
                continue
        if not 0 <= column < len(row):
            yield Fault(where, "too few columns", f"{len(row)}, expected at least {column + 1}", "choose a column with --field, from 1")
        else:
            yield row[column] or Fault(where, "empty column")

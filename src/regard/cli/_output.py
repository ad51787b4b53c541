"""Printing: JSON, tables, lists of names and values."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console() -> Console:
    # rich takes a pipe for a terminal of 80 columns and folds there; a file has room
    return Console() if sys.stdout.isatty() else Console(width=160)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    console().print(table, highlight=False)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """A name and a value per line."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in pairs:
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(value))
    console().print(table, highlight=False)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if math.isnan(value) else f"{value:.4g}"

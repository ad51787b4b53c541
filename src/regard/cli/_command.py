"""What every command is: a dataclass whose fields are its options, parsed by tyro, and `run`; and how commands print."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes

from ..errors import BadConfig, NotSupported

CONFIG = (FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand. The docstring of its class is its help text, and has an example after `As in:`."""

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        """Parse and run."""
        parse(cls, arguments, f"regard {cls.__name__.lower()}").run()

    def run(self) -> None:
        raise NotImplementedError


def parse(kind: Any, arguments: Sequence[str], program: str, *, description: str | None = None, default: Any = None) -> Any:
    """A dataclass from the command line; a usage error is printed as one line, which greps and logs better than a frame."""
    complaint = io.StringIO()
    given = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, prog=program, description=description, args=list(arguments), config=CONFIG, **given)
    except SystemExit as stop:
        if stop.code:
            print(f"regard: {_one_line(complaint.getvalue())}", file=sys.stderr)
        raise


def _one_line(box: str) -> str:
    """A framed message of several paragraphs as one line."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.strip().splitlines()]
    paragraphs = " ".join(line or "\n" for line in lines[1:]).split("\n")  # the first line is the title of the frame
    return "; ".join(" ".join(words) for words in (paragraph.split() for paragraph in paragraphs) if words)


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """--set width=128: numbers, true/false and tuples as Python writes them, anything else a name, or names with commas between them."""
    found: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.isidentifier():
            raise BadConfig(f"--set {one}: expected NAME=VALUE, as in --set width=128")
        try:
            found[key] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (ValueError, SyntaxError):
            names = _names(value)
            found[key] = names[0] if len(names) == 1 else tuple(names)
    return found


def _names(text: str) -> list[str]:
    """Cut at commas outside of parentheses."""
    names, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            names.append("")
        else:
            names[-1] += letter
    return [name.strip() for name in names]


def format_settings(settings: dict[str, Any]) -> tuple[str, ...]:
    """The arguments of --set that `parse_settings` reads as these settings."""
    return tuple(f"{name}={tuple(value) if isinstance(value, list) else value!r}" for name, value in settings.items())


def writable_folder(path: Path) -> Path:
    """The folder, made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotSupported(f"cannot write to {path}: {error.strerror}; choose another folder") from error
    return path


def check_writable(path: Path | None, option: str, suffix: str = "") -> None:
    """Refuse a file that could not be written, before time is spent."""
    if path is None or path == Path("-"):
        return
    if suffix and path.suffix.lower() != suffix:
        raise NotSupported(f"{option} {path}: the name must end in {suffix}")
    writable_folder(path.parent)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise NotSupported(f"cannot write to {path}; choose another file")


# -- printing ----------------------------------------------------------------------------------------------------------


def console(width: int = 160) -> Console:
    # rich takes a pipe for a terminal of 80 columns and folds there; a file has room
    return Console() if sys.stdout.isatty() else Console(width=width)


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

"""Commands: dataclasses whose fields are their options, parsed by tyro, with `run`; and the printing of their results."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes

from ..errors import BadConfig, NotSupported
from . import printable
from ._help import check_names, complaint, help_text
from ._options import options_of

if TYPE_CHECKING:
    from rich.console import Console

CONFIG = (FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes)
ALIASES = {"--eval-every": "--evaluate-every"}  # options that go by two names
WIDE = 160  # columns of a table that goes to a file


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand. The docstring of its class is its help text, and has an example after `As in:`."""

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        """Parse and run."""
        parse(cls, arguments, f"regard {cls.__name__.lower()}").run()

    @classmethod
    def concrete(cls) -> Any:
        """The class as it is parsed where no run or task says more about its options."""
        return cls

    def run(self) -> None:
        raise NotImplementedError


def parse(kind: Any, arguments: Sequence[str], program: str, *, description: str | None = None, default: Any = None) -> Any:
    """A dataclass from the command line; a usage error is one line, which greps and logs better than a frame."""
    if {"-h", "--help", "--help-all"} & set(arguments):
        print(help_text(program, inspect.getdoc(kind) or "" if description is None else description, options_of(kind, default)))
        raise SystemExit(0)
    arguments = [ALIASES.get(one.partition("=")[0], one.partition("=")[0]) + "".join(one.partition("=")[1:]) for one in arguments]
    message = io.StringIO()
    given = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(kind, prog=program, args=list(arguments), config=CONFIG, **given)
    except SystemExit as stop:
        if not stop.code:
            raise
        from ._pages import flags

        options = options_of(kind, default)  # only now: the help texts are read from the source of the classes
        check_names(arguments, program, options, flags())
        raise BadConfig(complaint(message.getvalue(), program, options, arguments)) from None


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
            from ..layers.spec import split_names

            names = split_names(value)
            found[key] = names[0] if len(names) == 1 else tuple(names)
    return found


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


def console(width: int = WIDE) -> Console:
    from rich.console import Console  # only here: lists and help do without it, and start faster

    # rich takes a pipe for a terminal of 80 columns and folds there; a file has room
    return Console() if sys.stdout.isatty() else Console(width=width)


def bold(text: str) -> str:
    """Text with colours, if there is a terminal and NO_COLOR is not set."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def columns_of_terminal() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE


def print_note(text: str) -> None:
    """Something worth knowing, on standard error, so that the output stays what it is."""
    if text:
        print(f"regard: {printable(text)}", file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], optional: Sequence[str] = ()) -> None:
    """A table that fits the terminal: `optional` columns are left out in this order, then wide columns are folded, but never the first."""
    width, shown = columns_of_terminal(), list(columns)
    texts = [dict(zip(columns, map(_cell, row), strict=True)) for row in rows]
    widths = {name: max([len(name), *(len(text[name]) for text in texts)]) for name in columns}
    numbers = {name for n, name in enumerate(columns) if rows and all(isinstance(row[n], int | float) for row in rows)}

    def total() -> int:
        return sum(widths[name] for name in shown) + 2 * (len(shown) - 1)

    for name in optional:
        if total() > width:
            shown.remove(name)
    while total() > width and max((widths[name] for name in shown[1:]), default=0) > 10:
        widths[max(shown[1:], key=lambda name: widths[name])] -= 1
    print(bold("  ".join(_pad(name, widths[name], name in numbers) for name in shown).rstrip()))
    for text in texts:
        folded = {name: textwrap.wrap(text[name], widths[name]) or [""] for name in shown}
        for n in range(max(map(len, folded.values()))):
            cells = [(folded[name][n] if n < len(folded[name]) else "", name) for name in shown]
            print("  ".join(_pad(cell, widths[name], name in numbers) for cell, name in cells).rstrip())


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """A name and a value per line."""
    left = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        lines = textwrap.wrap(value, max(20, columns_of_terminal() - left - 2)) or [""]
        print(f"{bold(name)}{'':{left - len(name) + 2}}{lines[0]}".rstrip())
        for line in lines[1:]:
            print(f"{'':{left + 2}}{line}")


def _pad(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return printable(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if math.isnan(value) else f"{value:.4g}"

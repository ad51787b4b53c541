"""Docstrings of installed packages as texts to summarise: the first line of each says what the rest explains.

    docstrings:installed                   of the standard library, numpy, torch and matplotlib, as far as they are installed
    docstrings:stdlib                      of the standard library; also any package by its name
    docstrings:stdlib,count=500            500 of them, chosen by a hash

Source files are read, never imported or run. Kept are docstrings of functions and classes whose first line stands alone and ends in a full
stop, with 3 to 30 words, above a body of 20 to 400 words; the article is the name of the function or class, and the body. White space becomes one
space. A text that occurs twice counts once. The key is the module, so that no module is on both sides of a split. What there is depends on the
versions that are installed: keep `Parallel.digest` beside a result.
"""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..errors import MissingFile, NotSupported
from .splits import Row, place

INSTALLED = ("stdlib", "numpy", "torch", "matplotlib")
SKIPPED = {"test", "tests", "testing", "site-packages", "__pycache__", "idlelib", "lib2to3"}  # folders
LARGEST = 1 << 20  # bytes of a source file
MOST = 100_000  # pairs
SUMMARY, BODY = range(3, 31), range(20, 401)  # words
_DOCSTRING = re.compile(r':[ \t]*(?:#[^\n]*)?\n\s*[rR]?"""(.*?)"""', re.DOTALL)  # after the colon of a signature
_NAME = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_BEFORE = 4000  # characters of a signature


def docstrings(head: str, count: int) -> list[Row]:
    """Rows (module, article, summary) of the packages that `head` names; `count` of them, or all for 0."""
    made: dict[tuple[str, str], str] = {}
    for name in INSTALLED if head == "installed" else (head,):
        folder = _folder(name)
        if folder is None:
            if head == "installed":
                continue
            raise MissingFile(f"docstrings:{head}: no package of this name is installed here; try docstrings:stdlib")
        for module, path in _modules(name, folder):
            for article, summary in pairs_in(path.read_text(encoding="utf-8", errors="replace")):
                made.setdefault((article, summary), module)
    if not made:
        raise NotSupported(f"docstrings:{head} has no docstring with a first line and a body; try docstrings:stdlib")
    rows = [(module, article, summary) for (article, summary), module in made.items()]
    rows = rows[:MOST] if len(rows) > MOST else rows
    if 0 < count < len(rows):
        rows = sorted(rows, key=lambda row: place("\t".join(row)))[:count]
    return rows


def pairs_in(source: str) -> Iterator[tuple[str, str]]:
    """(article, summary) of each docstring in a Python file."""
    for found in _DOCSTRING.finditer(source):
        names = _NAME.findall(source, max(0, found.start() - _BEFORE), found.start())
        first, _, rest = inspect.cleandoc(found[1]).partition("\n")
        if not names or not rest.startswith("\n"):
            continue
        summary, body = " ".join(first.split()), " ".join(rest.split())
        if summary.endswith(".") and len(summary.split()) in SUMMARY and len(body.split()) in BODY and "\0" not in body:
            yield f"{names[-1]}: {body}", summary


def _folder(name: str) -> Path | None:
    if name == "stdlib":
        return Path(sysconfig.get_path("stdlib"))
    try:
        spec = find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        return None
    return Path(spec.submodule_search_locations[0]) if spec is not None and spec.submodule_search_locations else None


def _modules(package: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of each module below a folder, in the order of their names."""
    for here, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if name not in SKIPPED)
        for name in sorted(files):
            path = Path(here) / name
            if name.endswith(".py") and path.stat().st_size <= LARGEST:
                parts = path.relative_to(folder).with_suffix("").parts
                yield ".".join((package, *(part for part in parts if part != "__init__"))), path

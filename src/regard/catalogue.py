"""What there is: everything here is derived from the lists MECHANISMS, MODELS and RECIPES and from the `facts` of what is in them.

The catalogue turns a name into a class for whoever types names (the command line, a page). Nothing else in the library
asks it: models and recipes hold classes, not strings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

from .attention import MECHANISMS, Attention
from .errors import UnknownName
from .models import MODELS

Kind = Literal["mechanisms", "models", "recipes"]


def mechanisms() -> dict[str, type[Attention]]:
    """Every mechanism by name, oldest first."""
    return {mechanism.facts.name: mechanism for mechanism in MECHANISMS}


def models() -> dict[str, Any]:
    """Every published system by name."""
    return _by_name(MODELS)


def recipes() -> dict[str, Any]:
    """Every claim that can be run, by name."""
    from .recipes import RECIPES  # recipes train, and what trains takes time to import

    return _by_name(RECIPES)


def listed(kind: Kind) -> dict[str, Any]:
    """One of the three lists."""
    return {"mechanisms": mechanisms, "models": models, "recipes": recipes}[kind]()


def find(name: str) -> Any:
    """The mechanism, model or recipe called `name`; the name of the class will do too. `UnknownName` names the nearest."""
    known = mechanisms() | models() | recipes()
    classes = {entry.__name__: entry for entry in known.values() if isinstance(entry, type)}
    folded = {_fold(key): entry for key, entry in (classes | known).items()}
    if _fold(name) not in folded:
        raise UnknownName("mechanism, model or recipe", name, known)
    return folded[_fold(name)]


def rows(kind: Kind = "mechanisms") -> list[dict[str, Any]]:
    """The facts as plain dictionaries: what `regard list --json` prints and the tables are made of."""
    return [_row(name, entry) for name, entry in listed(kind).items()]


def notes(entry: Any) -> dict[str, str]:
    """What a docstring says under its headings: {"Cost": …, "Use it": …, "Avoid it": …, "Limits": …, "Paper": …}."""
    said: dict[str, str] = {}
    heading = None
    for line in (inspect.getdoc(entry) or "").splitlines():
        starts = re.match(r"([A-Z][a-z]+(?: [a-z]+)?): +(\S.*)$", line)
        if starts:
            heading = starts[1]
            said[heading] = starts[2]
        elif heading is not None and line.startswith(" ") and line.strip():
            said[heading] += " " + line.strip()
        else:
            heading = None
    return said


def markdown_table() -> str:
    """The mechanisms as a table for README.md, written there by `make docs-table`."""
    header = ("name", "year", "what it computes", "time", "memory", "patterns", "causal", "steps", "paper")
    body = [
        (
            f"`{row['name']}`",
            str(row["year"]),
            row["formula"],
            row["time"],
            row["memory"],
            row["patterns"] if isinstance(row["patterns"], str) else ", ".join(row["patterns"]),
            row["causal"],
            "yes" if row["streaming"] else "no",
            _paper(row["title"], row["paper"]),
        )
        for row in rows("mechanisms")
    ]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in (header, ("---",) * len(header), *body))


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")  # as people type names in a terminal


def _by_name(entries: Iterable[Any]) -> dict[str, Any]:
    return {entry.facts.name: entry for entry in entries}


def _row(name: str, entry: Any) -> dict[str, Any]:
    summary = (inspect.getdoc(entry) or "").partition("\n")[0]
    facts = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(entry.facts).items()}
    return {"name": name, "class": getattr(entry, "__name__", type(entry).__name__), "summary": summary} | facts


def _cell(text: str) -> str:
    return text.replace("|", "\\|")  # a bar inside a formula would end the cell


def _paper(title: str, paper: str) -> str:
    number = paper.removeprefix("arXiv:")
    return title if number == paper else f"[{title}](https://arxiv.org/abs/{number})"

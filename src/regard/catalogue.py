"""Mechanisms, models, tasks and recipes by name, with their facts as plain dictionaries: for the command line and the page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal, get_args

from .attention import Attention
from .attention import mechanisms as mechanisms
from .errors import UnknownName
from .models import MODELS

Kind = Literal["mechanisms", "models", "tasks", "recipes"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def models() -> dict[str, Any]:
    """Every published system by name."""
    return _by_name(MODELS)


def tasks() -> dict[str, Any]:
    """Every task by name."""
    from .tasks import TASKS  # tasks read, train and decode, and what does takes time to import

    return {task.name: task for task in TASKS}


def recipes() -> dict[str, Any]:
    """Every claim that can be run, by name."""
    from .recipes import RECIPES  # recipes train, and what trains takes time to import

    return _by_name(RECIPES)


def listed(kind: Kind) -> dict[str, Any]:
    """One of the lists."""
    return {"mechanisms": mechanisms, "models": models, "tasks": tasks, "recipes": recipes}[kind]()


def find(name: str) -> Any:
    """The mechanism, model, task or recipe called `name`; the name of the class will do too. `UnknownName` names the nearest."""
    known = mechanisms() | models() | tasks() | recipes()
    classes = {entry.__name__: entry for entry in known.values() if isinstance(entry, type)}
    folded = {_fold(key): entry for key, entry in (classes | known).items()}
    if _fold(name) not in folded:
        raise UnknownName("mechanism, model, task or recipe", name, known)
    return folded[_fold(name)]


def rows(kind: Kind = "mechanisms") -> list[dict[str, Any]]:
    """The facts as plain dictionaries: what `regard list --json` prints."""
    return [row(entry) for entry in listed(kind).values()]


def row(entry: Any) -> dict[str, Any]:
    """The facts of one entry."""
    summary, kind = (inspect.getdoc(entry) or "").partition("\n")[0], getattr(entry, "__name__", type(entry).__name__)
    facts = {"name": entry.name, "model": entry.default_model} if not hasattr(entry, "facts") else asdict(entry.facts)
    if isinstance(entry, type) and issubclass(entry, Attention):
        paper, state = entry.facts.paper, entry.facts.state
        facts |= {"title": paper.title, "year": paper.year, "paper": paper.where, "causal": entry.facts.causal}
        facts["state"] = None if state is None else state.__name__
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()}
    return {"name": plain["name"], "class": kind, "summary": summary} | plain


def notes(entry: Any) -> dict[str, str]:
    """What a docstring says under its headings: {"Cost": …, "Use it": …, "Avoid it": …, "Limits": …, "Paper": …}."""
    sections: dict[str, str] = {}
    heading = None
    for line in (inspect.getdoc(entry) or "").splitlines():
        starts = re.match(r"([A-Z][a-z]+(?: [a-z]+)?): +(\S.*)$", line)
        if starts:
            heading = starts[1]
            sections[heading] = starts[2]
        elif heading is not None and line.startswith(" ") and line.strip():
            sections[heading] += " " + line.strip()
        else:
            heading = None
    return sections


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")  # as people type names in a terminal


def _by_name(entries: Iterable[Any]) -> dict[str, Any]:
    return {entry.facts.name: entry for entry in entries}

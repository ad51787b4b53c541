"""Mechanisms, models, tasks, recipes and patterns by name, with their facts as plain dictionaries: for the command line and the page."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, Literal, get_args

from .docstrings import notes
from .errors import UnknownName

# Whatever is listed needs PyTorch, which takes seconds to import: hence the imports inside functions.

Kind = Literal["mechanisms", "models", "tasks", "recipes", "patterns"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def mechanisms() -> dict[str, Any]:
    """Every mechanism by name, oldest first, then registered ones."""
    from .attention import mechanisms

    return dict(mechanisms())


def models() -> dict[str, Any]:
    """Every published system by name."""
    from .models import MODELS

    return _by_name(MODELS)


def tasks() -> dict[str, Any]:
    """Every task by name."""
    from .tasks import TASKS

    return {task.name: task for task in TASKS}


def recipes() -> dict[str, Any]:
    """Every claim that can be run, by name."""
    from .recipes import RECIPES

    return _by_name(RECIPES)


def patterns() -> dict[str, Any]:
    """Every rule that a pattern can be written with, by name: patterns, and functions that make one."""
    from .patterns._parse import RULES, VALUES

    return VALUES | RULES


def listed(kind: Kind) -> dict[str, Any]:
    """One of the lists."""
    return {"mechanisms": mechanisms, "models": models, "tasks": tasks, "recipes": recipes, "patterns": patterns}[kind]()


def find(name: str) -> Any:
    """The mechanism, model, task or recipe called `name`; the name of the class will do too. `UnknownName` names the nearest."""
    known = mechanisms() | models() | tasks() | recipes()
    classes = {entry.__name__: entry for entry in known.values() if isinstance(entry, type)}
    folded = {fold(key): entry for key, entry in (classes | known).items()}
    if fold(name) not in folded:
        raise UnknownName("mechanism, model, task or recipe", name, known)
    return folded[fold(name)]


def rows(kind: Kind = "mechanisms") -> list[dict[str, Any]]:
    """The facts as plain dictionaries: what `regard list --json` prints."""
    if kind == "patterns":
        return [_pattern_row(name, rule) for name, rule in patterns().items()]
    return [row(entry) for entry in listed(kind).values()]


def row(entry: Any) -> dict[str, Any]:
    """The facts of one entry."""
    from .attention import Attention

    summary, kind = (inspect.getdoc(entry) or "").partition("\n")[0], getattr(entry, "__name__", type(entry).__name__)
    facts = {"name": entry.name, "model": entry.default_model} if not hasattr(entry, "facts") else asdict(entry.facts)
    if isinstance(entry, type) and issubclass(entry, Attention):
        paper, state = entry.facts.paper, entry.facts.state
        facts |= {"title": paper.title, "year": paper.year, "paper": paper.where, "causal": entry.facts.causal}
        facts["state"] = None if state is None else state.__name__
    if hasattr(entry, "question"):
        summary = entry.question
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()}
    return {"name": plain["name"], "class": kind, "summary": summary} | plain


def details(kind: Kind) -> list[dict[str, Any]]:
    """The facts of a list and all that `regard show` says about each entry, as plain values."""
    return [facts | _details(kind, entry) for facts, entry in zip(rows(kind), listed(kind).values(), strict=True)]


def _details(kind: Kind, entry: Any) -> dict[str, Any]:
    if kind == "tasks":
        from .runs import to_plain

        return {"notes": {}, "doc": inspect.getdoc(entry), "options": to_plain(entry.Options()), "train": to_plain(entry.default_train)}
    if kind == "recipes":
        return {"notes": {}, "claims": [claim.text for claim in entry.claims], "variants": list(entry.variants), "seeds": list(entry.seeds)}
    if kind == "models":
        return {"notes": notes(entry), "settings": settings(entry.Config), "sizes": list(entry.sizes)}
    return {"notes": notes(entry)} if kind == "mechanisms" else {}


def _pattern_row(name: str, rule: Any) -> dict[str, Any]:
    from .patterns import Pattern

    if isinstance(rule, Pattern):
        return {"name": name, "arguments": "", "summary": (inspect.getdoc(type(rule)) or "").partition("\n")[0]}
    signature = ", ".join(str(part).partition(":")[0] + _default(part) for part in inspect.signature(rule).parameters.values())
    return {"name": name, "arguments": signature, "summary": (inspect.getdoc(rule) or "").partition("\n")[0]}


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f"={parameter.default}"


def settings(config: type[Any]) -> list[dict[str, str]]:
    """Every setting of a model: its name, its default (empty where it must be given) and what it means."""
    said = field_help(config)
    return [
        {"name": field.name, "default": "" if field.default is MISSING else str(field.default), "meaning": said.get(field.name, "")}
        for field in fields(config)
        if field.name != "attention_overrides"  # internal: what `with_attention` records
    ]


def field_help(kind: type[Any]) -> dict[str, str]:
    """What is written about each field of a dataclass: the string under it, or the comment behind it; a base class's where it has none."""
    found: dict[str, str] = {}
    for part in reversed([part for part in kind.__mro__ if is_dataclass(part)]):
        try:
            source = textwrap.dedent(inspect.getsource(part))
        except (OSError, TypeError):  # made at run time
            continue
        lines, body = source.splitlines(), ast.parse(source).body[0]
        nodes = body.body if isinstance(body, ast.ClassDef) else []
        for node, after in zip(nodes, [*nodes[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                found[node.target.id] = inspect.cleandoc(after.value.value)
            elif comment := re.match(r"\s*#\s*(.+)", lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :].decode()):
                found[node.target.id] = comment[1]
    return found


def fold(name: str) -> str:
    """As people type names in a terminal."""
    return name.lower().replace("-", "_")


def _by_name(entries: Iterable[Any]) -> dict[str, Any]:
    return {entry.facts.name: entry for entry in entries}

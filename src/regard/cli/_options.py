"""The options of a command as plain rows, read from its dataclass: for help, shell completion and error messages.

tyro parses the same dataclass; a test holds the two equal.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tyro.conf import Positional, Suppress

from ..docstrings import field_help

METAVARS: dict[type[Any], str] = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
NAMED = {"model": "NAME", "attention": "NAME", "set": "NAME=VALUE", "data": "DATA", "valid": "DATA", "test": "DATA"}  # by field
POSITIONAL, SUPPRESS = (get_args(marked[int])[1] for marked in (Positional, Suppress))


@dataclass(frozen=True)
class Option:
    """One option or positional argument."""

    name: str  # words to type: --out; NAME of a positional argument
    value: str  # PATH, N, "a|b"; empty: a switch
    help: str
    default: str = ""  # empty: none worth showing
    choices: tuple[str, ...] = ()
    required: bool = False
    section: str = ""  # empty: options of the command itself

    @property
    def positional(self) -> bool:
        return not self.name.startswith("-")


def options_of(kind: Any, default: Any = None, section: str = "") -> list[Option]:
    """Every option of a dataclass, those of the dataclasses inside it after its own; `default` is an instance with other defaults."""
    origin, given = get_origin(kind) or kind, get_args(kind)
    hints, said = get_type_hints(origin, include_extras=True), field_help(origin)
    own, inside = list[Option](), list[Option]()
    for field in fields(origin):
        hint: Any = given[0] if isinstance(hints[field.name], TypeVar) and given else hints[field.name]
        marks: tuple[Any, ...] = ()
        while get_origin(hint) is Annotated:
            hint, marks = get_args(hint)[0], (*marks, *get_args(hint)[1:])
        value = _default(field) if default is None else getattr(default, field.name)
        if SUPPRESS in marks:
            continue
        if is_dataclass(hint) or is_dataclass(value):
            known = value if is_dataclass(value) and not isinstance(value, type) else None
            inside += options_of(type(known) if known is not None else hint, known, _title(type(known) if known is not None else hint))
        else:
            titles = [title for title, names in getattr(origin, "SECTIONS", {}).items() if field.name in names]
            own.append(_option(field.name, hint, value, said.get(field.name, ""), POSITIONAL in marks, titles[0] if titles else section))
    order = list(getattr(origin, "SECTIONS", {}))
    return sorted(own, key=lambda one: (not one.positional, order.index(one.section) if one.section in order else -1)) + inside


def _option(name: str, hint: Any, value: Any, text: str, positional: bool, section: str) -> Option:
    kinds = [part for part in get_args(hint) if part is not type(None)] if get_origin(hint) in (Union, UnionType) else [hint]
    kind = kinds[0]
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    choices = tuple(str(choice) for choice in get_args(kind)) if get_origin(kind) is Literal else ()
    many = get_origin(kind) is tuple
    flag = f"--{name.replace('_', '-')}"
    if kind is bool and value is True:  # its help says what False means
        text = text.removeprefix("False: ")
        return Option(f"--no-{flag[2:]}", "", text[:1].upper() + text[1:], section=section)
    if kind is bool:
        return Option(flag, "", text, section=section)
    metavar = NAMED[name] if name in NAMED and kind is not bool else _metavar(kind)
    if positional:
        label = "RUN" if name == "folder" and text.startswith("Run") else (name.rstrip("s") if many else name).upper()
        return Option(f"{label}…" if many else label, "", text, choices=choices, required=value is MISSING, section=section)
    shown = "" if value in (None, MISSING, "", (), {}) else " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return Option(flag, metavar, text, shown, choices, value is MISSING, section)


def _metavar(kind: Any) -> str:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) in (dict, Mapping):
        return " ".join(map(_metavar, get_args(kind)))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return f"{_metavar(parts[0])}…" if parts[-1] is Ellipsis else " ".join(map(_metavar, parts))
    return METAVARS.get(kind, "TEXT")


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return MISSING if field.default_factory is MISSING else field.default_factory()


def _title(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or kind.__name__).partition("\n")[0].partition(". ")[0].rstrip(".")

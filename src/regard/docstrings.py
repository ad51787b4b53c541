"""Docstrings, read: formulas, notes under headings such as "Use it", arguments under "Args"; help texts of the fields of dataclasses."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from typing import Any

FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_HEADING = re.compile(r"([A-Z][a-z]+(?: [a-z]+)?): +(\S.*)$")
_ARGUMENT = re.compile(r" {4}\*{0,2}(\w+): +(\S.*)$")


def notes(entry: Any) -> dict[str, str]:
    """Read the notes of a docstring by heading: {"Cost": …, "Use it": …, "Avoid it": …, "Limits": …, "Paper": …}.

    Args:
        entry: anything with a docstring.
    """
    sections: dict[str, str] = {}
    heading = None
    for line in (inspect.getdoc(entry) or "").splitlines():
        starts = _HEADING.match(line)
        if starts:
            heading = starts[1]
            sections[heading] = starts[2]
        elif heading is not None and line.startswith(" ") and line.strip():
            sections[heading] += " " + line.strip()
        else:
            heading = None
    return sections


def arguments(entry: Any) -> dict[str, str]:
    """Read what a docstring says about each argument under "Args:", by name, without asterisks.

    Args:
        entry: a class, whose constructor it is about, or a function.
    """
    found: dict[str, str] = {}
    inside, name = False, ""
    for line in (inspect.getdoc(entry) or "").splitlines():
        if not line.startswith(" "):
            inside = line == "Args:"
        elif inside and (starts := _ARGUMENT.match(line)):
            name = starts[1]
            found[name] = starts[2]
        elif inside and name:
            found[name] += " " + line.strip()
    return found


def formulas(text: str) -> list[str]:
    """Find the displayed formulas of a docstring, in TeX, each on one line.

    Args:
        text: a docstring.
    """
    return [" ".join(formula.split()) for formula in FORMULA.findall(text)]


def description(entry: Any) -> str:
    """Read a docstring without its notes and arguments: up to the first heading, in Markdown with formulas in TeX.

    Args:
        entry: anything with a docstring.
    """
    lines = (inspect.getdoc(entry) or "").splitlines()
    end = next((n for n, line in enumerate(lines) if line == "Args:" or _HEADING.match(line)), len(lines))
    return "\n".join(lines[:end]).strip()


def field_help(kind: type[Any]) -> dict[str, str]:
    """Read the help of each field of a dataclass: the string under it, or the comment behind it; a base class's where it has none.

    Args:
        kind: a dataclass.
    """
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

"""What docstrings of mechanisms and models say: formulas, and notes under headings such as "Use it"."""

from __future__ import annotations

import inspect
import re
from typing import Any

FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_HEADING = re.compile(r"([A-Z][a-z]+(?: [a-z]+)?): +(\S.*)$")


def notes(entry: Any) -> dict[str, str]:
    """What a docstring says under its headings: {"Cost": …, "Use it": …, "Avoid it": …, "Limits": …, "Paper": …}."""
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


def formulas(text: str) -> list[str]:
    """The displayed formulas of a docstring, in TeX, each on one line."""
    return [" ".join(formula.split()) for formula in FORMULA.findall(text)]


def description(entry: Any) -> str:
    """A docstring without its notes: what comes before the first heading, in Markdown with formulas in TeX."""
    lines = (inspect.getdoc(entry) or "").splitlines()
    end = next((n for n, line in enumerate(lines) if _HEADING.match(line)), len(lines))
    return "\n".join(lines[:end]).strip()

"""Docstrings in our style as Markdown, for the API reference: notes ("Use it:" …) and lists of arguments ("rows: …")."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

HEADING = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?): +(?=\S)", re.MULTILINE)
ARGUMENT = re.compile(r"^([a-z_]\w*): +(?=\S)", re.MULTILINE)
ARGS = re.compile(r"^Args:\n((?:(?: {4,}.*)?\n?)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\*{0,2}\w+): +(?=\S)", re.MULTILINE)


class Notes(Extension):
    """Called by griffe for every object that it has read."""

    def on_object(self, *, obj: Object, **more: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Headings begin a paragraph, arguments a list item; formulas stand apart."""
    text = ARGS.sub(lambda found: "\n**Args**\n\n" + ENTRY.sub(r"- `\1`: ", found[1]).strip("\n") + "\n\n", text)
    text = HEADING.sub(r"\n**\1** ", text).replace("$$\n$$", "$$\n\n$$")
    paragraphs = (ARGUMENT.sub(r"- `\1`: ", part) if ARGUMENT.match(part) else part for part in text.split("\n\n"))
    return "\n\n".join(paragraphs)

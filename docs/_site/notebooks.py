"""Notebooks as pages: text cells as they are, code in blocks, outputs as text and pictures."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Notebook:
    """A page and its pictures by file name."""

    name: str
    title: str
    markdown: str
    pictures: dict[str, bytes] = field(default_factory=dict)


def read_all(folder: Path) -> list[Notebook]:
    """All notebooks of a folder, in the order in which to read them: their titles are numbered."""
    found = [to_page(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.ipynb")]
    return sorted(found, key=lambda notebook: notebook.title)


def overview(all_of_them: list[Notebook]) -> str:
    """The first page of the section."""
    lines = [f"1. [{one.title.partition('. ')[2]}]({one.name}.md)" for one in all_of_them]
    return (
        "# Notebooks\n\nFrom a weighted average to a transformer: formula, code, picture, and small exercises with answers. An hour together.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def to_page(name: str, notebook: dict[str, Any]) -> Notebook:
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```py\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![output of the cell above]({file})")
            else:
                parts.append(f"```text\n{''.join(data.get('text/plain', '')).rstrip()}\n```")
    where = f"*This page is `notebooks/{name}.ipynb`: open it to run it.*"
    title = re.search(r"^# (.+)$", parts[0], re.MULTILINE)
    head, _, rest = parts[0].partition("\n")
    parts[0] = f"{head}\n\n{where}\n{rest}"
    return Notebook(name, title[1] if title else name, "\n\n".join(parts) + "\n", pictures)

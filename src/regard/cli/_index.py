"""index.json: what `regard list`, `show`, `--help` and shell completion print, so that they need not import PyTorch, which takes seconds.

It is written by `make index` from the lists and dataclasses themselves, and a test fails where it differs from them. pictures.json beside it
holds what `show` draws of each mechanism.
"""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

from .. import catalogue
from ._options import Option, from_json, options_of, to_json

FILE = Path(__file__).with_name("index.json")
PICTURES = Path(__file__).with_name("pictures.json")  # what `regard show MECHANISM` draws, by name


@cache
def read() -> dict[str, Any]:
    """The stored index: {"commands": …, "mechanisms": …, "models": …, …}."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def entries(kind: str) -> list[dict[str, Any]]:
    """One of the lists, with all that `show` says about each entry."""
    return list(read()[kind])


def command(name: str) -> tuple[str, list[Option]]:
    """The description and the options of a command, as in `train language`."""
    found = read()["commands"][name]
    return found["about"], from_json(found["options"])


def flags() -> dict[str, list[str]]:
    """The names of the options of every command, those that depend on a run's task included."""
    found = {}
    for name, stored in read()["commands"].items():
        own = [row["name"] for row in stored["options"] if row["name"].startswith("-")]
        found[name] = own + [more for more in stored.get("task_options", ()) if more not in own]
    return found


def picture(name: str) -> str:
    """The stored picture of a mechanism's weights, or the reason why there is none."""
    found: dict[str, str] = json.loads(PICTURES.read_text(encoding="utf-8"))
    return found[name]


def build_pictures() -> dict[str, str]:
    """The pictures as they should be."""
    from ..attention import MECHANISMS
    from .show import draw_example

    return {mechanism.facts.name: draw_example(mechanism) for mechanism in MECHANISMS}


def build() -> dict[str, Any]:
    """The index as it should be."""
    from ..tasks import TASKS
    from . import COMMANDS, load_command
    from .train import Train, train_defaults

    commands: dict[str, Any] = {}
    for name in COMMANDS:
        kind = load_command(name)
        if name != "train":  # whose options are those of a task
            commands[name] = {"about": inspect.getdoc(kind), "options": to_json(options_of(kind.concrete()))}
        if slot := getattr(kind, "task_options", ""):
            more = [option.name for task in TASKS for option in options_of(getattr(task, slot))]
            commands[name]["task_options"] = sorted(set(more))  # known with the run
    commands["train"] = {"about": inspect.getdoc(Train), "options": []}
    for task in TASKS:
        options = options_of(Train[task.Options], train_defaults(Train, task, None))  # type: ignore[name-defined]
        commands[f"train {task.name}"] = {"about": inspect.getdoc(task), "options": to_json(options)}
    return {"commands": commands} | {kind: catalogue.details(kind) for kind in catalogue.KINDS}


def to_text(index: dict[str, Any]) -> str:
    """One entry per line, so that differences are readable."""
    sections = []
    for kind, found in index.items():
        rows = (
            [f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in found.items()]
            if isinstance(found, dict)
            else [json.dumps(entry, ensure_ascii=False) for entry in found]
        )
        opening, closing = "{}" if isinstance(found, dict) else "[]"
        sections.append(f"{json.dumps(kind)}: {opening}\n" + ",\n".join(rows) + f"\n{closing}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(to_text(build()), encoding="utf-8")
    PICTURES.write_text(json.dumps(build_pictures(), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

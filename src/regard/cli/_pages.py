"""Help pages of all commands, from the dataclasses that are parsed: descriptions and rows of options, without PyTorch."""

from __future__ import annotations

import inspect
from typing import Any

from ..tasks import declarations, find_declaration
from ._options import Option, options_of

# Options that `train TASK --help` shows, where the task has them; those of `Declaration.main_options` come after. The rest is behind --help-all.
MAIN = (
    *(
        "data",
        "out",
        "model",
        "init_from",
        "resume",
        "minutes",
        "steps",
        "epochs",
        "batch_size",
        "batch_tokens",
        "lr",
        "device",
        "tokenizer",
    ),
)


def page(name: str) -> tuple[str, list[Option]]:
    """Return the description and the options of a command.

    Args:
        name: command, as in "show" or "train language".
    """
    from . import load_command

    command, _, task = name.partition(" ")
    kind = load_command(command)
    if command != "train":
        return inspect.getdoc(kind) or "", options_of(kind.concrete())
    if not task:
        return inspect.getdoc(kind) or "", []
    declared = find_declaration(task)
    return inspect.getdoc(declared) or "", train_options(declared)


def train_options(declared: Any, default: Any = None) -> list[Option]:
    """List the options of `train TASK`.

    Args:
        declared: declaration of the task.
        default: command with other defaults than those of the task.
    """
    from .train import Train, train_defaults

    return options_of(Train[declared.Options], default or train_defaults(Train, declared, None))


def main_flags(declared: Any) -> list[str]:
    """List the options of a task that `--help` shows, in order.

    Args:
        declared: declaration of the task.
    """
    return [f"--{name.replace('_', '-')}" for name in dict.fromkeys((*MAIN, *declared.main_options))]


def names() -> list[str]:
    """List every command, and `train TASK` of every task."""
    from . import COMMANDS

    return [*COMMANDS, *(f"train {task}" for task in declarations())]


def flags() -> dict[str, list[str]]:
    """List the names of the options of every command, those that depend on a run's task included."""
    from . import load_command

    found = {}
    for name in names():
        own = [option.name for option in page(name)[1] if not option.positional]
        slot = "" if " " in name else getattr(load_command(name), "task_options", "")
        more = sorted({option.name for task in declarations().values() for option in options_of(getattr(task, slot))}) if slot else []
        found[name] = own + [one for one in more if one not in own]
    return found

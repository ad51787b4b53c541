"""The command `regard`: every subcommand parses, calls one function of the library, and prints what it returns.

Exit codes: 0 done, 1 something broke, 2 asked for what is not there or cannot be, 130 interrupted, 141 nobody reads on.

Nothing here imports PyTorch before it is needed: help pages come from dataclasses that do without (`_pages.py`), lists and facts from a cache
(`_facts.py`).
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import BadFile, DiffersWarning, Interrupted, RegardError, UnknownName
from ..files import is_text

if TYPE_CHECKING:
    from ._command import Command

# The list everything else reads: a new command is one line here. Modules are imported when their command is run.
GROUPS: dict[str, dict[str, str]] = {
    "Explore": {
        "list": "show:List",
        "show": "show:Show",
        "compare": "experiments:Compare",
        "check": "experiments:Check",
        "run": "experiments:Run",
        "demo": "experiments:Demo",
        "env": "show:Env",
    },
    "Train": {"train": "train:Train", "runs": "runs:Runs", "evaluate": "runs:Evaluate"},
    "Use": {
        "predict": "runs:Predict",
        "complete": "generate:Complete",
        "look": "runs:Look",
        "embed": "embed:Embed",
        "serve": "generate:Serve",
    },
    "Exchange": {"swap": "exchange:Swap", "import": "exchange:Import", "export": "exchange:Export"},
    "Shell": {"completion": "completion:Completion"},
}
COMMANDS = {name: where for commands in GROUPS.values() for name, where in commands.items()}
TITLE = f"regard {__version__}: the whole lineage of attention behind one contract"
EXAMPLES = """\
  regard demo
  regard show softmax
  regard train language --data book.txt --out runs/book --minutes 5
  regard complete runs/book "Once upon a time"
"""


def load_command(name: str) -> type[Command]:
    """The class of a command.

    Args:
        name: name of a command; its module is imported.
    """
    module, _, kind = COMMANDS[name].partition(":")
    found: type[Command] = getattr(import_module(f".{module}", __name__), kind)
    return found


def printable(text: str) -> str:
    """A text with control characters spelled out: names and contents of files must not command the terminal.

    Args:
        text: text for the terminal.
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments without the name of the program; None: those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ■ shows ?, and does not fail
    try:
        if wrong := [argument for argument in arguments if not is_text(argument)]:
            raise BadFile(f"{wrong[0]!r} is not UTF-8; rename the file or folder, or correct the text")
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            _run(arguments)
        sys.stdout.flush()
        return 0
    except Interrupted as stop:
        print(f"regard: {printable(str(stop))}", file=sys.stderr)
        return stop.code
    except RegardError as error:
        print(f"regard: {printable(str(error))}", file=sys.stderr)
        return 2
    except SystemExit as stop:  # --help, or a usage error that is already printed
        return stop.code if isinstance(stop.code, int) else 0
    except BrokenPipeError:
        # Whoever read, as in `regard list | head -1`, has gone; without this the interpreter complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None:
            raise
        print(f"regard: {printable(str(error.filename))[:200]}: {error.strerror}", file=sys.stderr)  # a name too long, a loop of links
        return 2
    except KeyboardInterrupt:
        print("regard: interrupted", file=sys.stderr)
        return 130


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    """Print a warning as one line; those of regard without a place in the source, which says nothing to a user."""
    place = "" if issubclass(category, DiffersWarning) else f"{filename}:{lineno}: {category.__name__}: "
    print(f"regard: {place}{printable(str(message))}", file=sys.stderr)


def _run(arguments: list[str]) -> None:
    match arguments:
        case ["--version" | "-V" | "version"]:
            print(f"regard {__version__}")
        case [] | ["-h" | "--help" | "help"]:
            print(overview())
        case ["help", *words]:
            _run([*words, "--help"])
        case [name, *rest] if name in COMMANDS:
            if (arguments == ["train"] or {"-h", "--help", "--help-all"} & set(rest)) and _print_help(name, rest):
                return
            with _quiet_interrupts():
                command = load_command(name)
            command.main(rest)
        case [name, *_]:
            raise UnknownName("command", name, COMMANDS)


def overview() -> str:
    """Return the page that `regard --help` prints."""
    from inspect import getdoc

    from ._help import two_columns

    lines = [TITLE, "", "usage: regard COMMAND [OPTIONS]"]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        for name in commands:
            summary = (getdoc(load_command(name)) or "").partition("\n")[0]
            lines += two_columns(name, summary, left=12)
    lines += ["", "Examples:", EXAMPLES, "regard COMMAND --help explains a command; regard --version prints the version."]
    return "\n".join(lines)


def _print_help(name: str, rest: Sequence[str]) -> bool:
    """Print the help page of a command; False where it depends on a run or a file."""
    from ._help import help_text, main_page, task_list

    words = [word for word in rest if not word.startswith("-")]
    if name == "train":
        from ..registry import load_plugins
        from ._pages import declarations, main_flags, page

        if not words:
            load_plugins()
            print(task_list(page("train")[0], declarations()))
            return True
        if words[0] not in declarations() or {"--config", "--resume", "--model"} & set(rest):
            return False
        about, options = page(f"train {words[0]}")
        print(
            help_text(
                f"regard train {words[0]}",
                about,
                options if "--help-all" in rest else main_page(options, main_flags(declarations()[words[0]])),
            )
        )
        return True
    if words and name in ("evaluate", "predict", "look"):
        return False
    from ._pages import page

    print(help_text(f"regard {name}", *page(name)))
    return True


class _quiet_interrupts:
    """Ctrl-C while modules are imported ends the process at once: an exception there may surface anywhere, and in many words."""

    def __enter__(self) -> None:
        self.before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
        if self.before is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)

    def __exit__(self, *exc: object) -> None:
        if self.before is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"regard: interrupted\n")
    os._exit(130)

"""The command `regard`: every subcommand parses, calls one function of the library, and prints what it returns.

Exit codes: 0 done, 1 something broke, 2 asked for what is not there or cannot be, 130 interrupted, 141 nobody reads on.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import Interrupted, RegardError, UnknownName
from ._command import Command
from .demo import Demo
from .experiments import Check, Compare, Run
from .generate import Complete, Serve
from .runs import Evaluate, Export, Import, Look, Predict
from .show import Env, List, Show
from .train import Train

# The list everything else reads: a new command is one import and one name here.
COMMANDS: dict[str, type[Command]] = {
    command.__name__.lower(): command
    for command in (List, Show, Train, Evaluate, Predict, Look, Complete, Serve, Import, Export, Compare, Check, Run, Env, Demo)
}
DESCRIPTION = f"""regard {__version__}: the whole lineage of attention behind one contract.

As in:  regard list
        regard show softmax
        regard show "causal & window(3)"
        regard train translation --data numbers:en-de --out runs/numbers --minutes 2
        regard predict runs/numbers "twenty-one"
        regard train language --data folder --out runs/mine --minutes 5
        regard compare linear local --lengths 512 2048 8192
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ■ shows ?, and does not fail
    try:
        _run(arguments)
        sys.stdout.flush()
        return 0
    except Interrupted as stop:
        print(f"regard: {stop}", file=sys.stderr)
        return stop.code
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        return 2
    except SystemExit as stop:  # --help, or a usage error that is already printed
        return stop.code if isinstance(stop.code, int) else 0
    except BrokenPipeError:
        # Whoever read, as in `regard list | head -1`, has gone; without this the interpreter complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("regard: interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"regard {__version__}")
    elif not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: regard COMMAND [OPTIONS]\n\n{DESCRIPTION}\nCommands:")
        for name, command in COMMANDS.items():
            print(f"  {name:10}{(inspect.getdoc(command) or '').splitlines()[0]}")
    elif arguments[0] not in COMMANDS:
        raise UnknownName("command", arguments[0], COMMANDS)
    else:
        COMMANDS[arguments[0]].main(arguments[1:])

"""The command `regard`: every subcommand parses, calls one function of the library, and prints what it returns.

Exit codes: 0 done, 1 something broke, 2 asked for what is not there or cannot be, 130 interrupted, 141 nobody reads on.
"""

from __future__ import annotations

import contextlib
import io
import json as json_
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes, Positional, subcommand

from . import __version__, catalogue, kernels, show
from .commands import Compare, Evaluate, Export, Import, Look, Predict
from .errors import Interrupted, NotSupported, RegardError, ShapeError, UnknownName
from .patterns import Pattern, parse
from .training import TASKS, Train
from .writing import Complete, Serve

COLUMNS = {  # of `regard list`: fact → heading
    "mechanisms": {"name": "name", "year": "year", "formula": "what it computes", "time": "time", "memory": "memory", "paper": "paper"},
    "models": {"name": "name", "year": "year", "title": "title", "paper": "paper"},
    "recipes": {"name": "name", "year": "year", "title": "title", "takes": "takes", "paper": "paper"},
}


@dataclass(frozen=True)
class List:
    """What there is: mechanisms, models or recipes.

    As in:  regard list mechanisms --json
    """

    what: Positional[str] = "mechanisms"
    """mechanisms, models or recipes"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        if self.what not in ("mechanisms", "models", "recipes"):
            raise UnknownName("list", self.what, ["mechanisms", "models", "recipes"])
        rows = catalogue.rows(self.what)  # type: ignore[arg-type]  # checked above
        if self.json:
            return _print_json(rows)
        if not rows:
            print(f"no {self.what} yet")
            return
        columns = COLUMNS[self.what]
        table = Table(*(columns.values()), box=None, header_style="bold")
        for row in rows:
            table.add_row(*(escape(str(row.get(key, ""))) for key in columns))
        _console().print(table)


@dataclass(frozen=True)
class Show:
    """One mechanism, or one pattern, explained and drawn.

    As in:  regard show softmax
            regard show "causal & (window(3) | tokens(0))" --length 20 --png pattern.png
    """

    name: Positional[str]
    """a name from `regard list`, or a pattern as one would type it in Python"""
    png: Path | None = None
    """write the picture to this file too"""
    length: int = 12
    """tokens in the picture"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        if not 2 <= self.length <= show.LONGEST:
            raise ShapeError(f"--length {self.length}: expected 2 to {show.LONGEST}")
        try:
            entry = catalogue.find(self.name)
        except UnknownName:
            return self._pattern(_pattern(self.name))
        self._entry(entry)

    def _pattern(self, pattern: Pattern) -> None:
        if pattern.heads > 16:
            raise ShapeError(f"`{pattern}` tells {pattern.heads} heads apart; at most 16 are drawn")
        if self.json:
            _print_json(
                {"pattern": pattern.name, "length": self.length, "mask_HLM": pattern.mask(self.length, self.length)[0].int().tolist()}
            )
        else:
            print(pattern.name, pattern.draw(self.length), sep="\n")
        if self.png is not None:
            _saved(pattern.save_png(_ready(self.png), self.length), self.json)

    def _entry(self, entry: Any) -> None:
        row = next(row for kind in ("mechanisms", "models", "recipes") for row in catalogue.rows(kind) if row["name"] == entry.facts.name)
        notes, maps, why = catalogue.notes(entry), None, ""
        if entry in catalogue.mechanisms().values():
            try:
                maps = show.example(entry, self.length)
            except NotSupported as error:
                why = str(error)
        if self.json:
            drawn = {} if maps is None else {"pattern": maps.view().pattern, "weights_LM": maps.view().weights_BHLM[0, 0].tolist()}
            _print_json(row | {"notes": notes} | drawn)
        else:
            _print_entry(row, notes)
            if maps is not None:
                print("\nIts weights where the second half of a sequence repeats the first (a line a query, a column a key):\n")
                maps.show()
            elif why:
                print(f"\nNo picture: {why}.")
        if self.png is not None:
            if maps is None:
                raise NotSupported(f"{self.name} has no weights to draw: {why or 'only mechanisms do'}")
            _saved(maps.save_png(_ready(self.png)), self.json)


@dataclass(frozen=True)
class Env:
    """This machine, what regard found on it, and whether bfloat16 is safe.

    As in:  regard env --json
    """

    json: bool = False
    """print JSON"""

    def run(self) -> None:
        from .env import environment

        found = environment(__version__)
        if self.json:
            return _print_json(found)
        table = Table(show_header=False, box=None)
        for name, value in _flat(found):
            table.add_row(f"[bold]{escape(name)}[/bold]", escape(value))
        _console().print(table)


@dataclass(frozen=True)
class Run:
    """Reproduce a paper's claim beside the ablation that must lose, and write a report.

    As in:  regard run memory2020
            regard run complexity2017 --out results --seeds 0 1
    """

    name: Positional[str]
    """a recipe from `regard list recipes`"""
    out: Path | None = None
    """where results.json and report.html go; runs/NAME if not given"""
    seeds: tuple[int, ...] = ()
    """the recipe's own if not given"""

    def run(self) -> None:
        from . import recipes

        known = catalogue.recipes()
        if self.name not in known:
            raise UnknownName("recipe", self.name, known)
        kernels.keep_memory()
        outcome = recipes.run(known[self.name], _folder(self.out or Path("runs") / self.name), self.seeds or None)
        print(
            f"{'All claims hold' if outcome.held else 'Not all claims hold'}; {outcome.seconds:.0f} s. wrote {outcome.out / 'report.html'}"
        )


@dataclass(frozen=True)
class Demo:
    """Train two translators of number words, English to German, and see how they align.

    As in:  regard demo --out pictures
    """

    out: Path = Path("demo")
    """where runs, pictures and report.html go"""
    seconds: float = 50.0
    """how long each of the two is trained"""
    seed: int = 0
    """of the weights, the data order and dropout"""
    resume: bool = False
    """go on with a demo that was interrupted"""

    def run(self) -> None:
        from .demo import demo

        demo(_folder(self.out), seconds=self.seconds, seed=self.seed, resume=self.resume)


Command = (
    Annotated[List, subcommand("list")]
    | Annotated[Show, subcommand("show")]
    | Annotated[Env, subcommand("env")]
    | Annotated[Run, subcommand("run")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Evaluate, subcommand("evaluate")]
    | Annotated[Predict, subcommand("predict")]
    | Annotated[Look, subcommand("look")]
    | Annotated[Complete, subcommand("complete")]
    | Annotated[Serve, subcommand("serve")]
    | Annotated[Import, subcommand("import")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Demo, subcommand("demo")]
)
OPTIONS = (FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes)
COMMANDS = (
    "list",
    "show",
    "run",
    "train",
    "evaluate",
    "predict",
    "look",
    "complete",
    "serve",
    "import",
    "export",
    "compare",
    "env",
    "demo",
)
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
        if arguments in (["--version"], ["-V"]):
            print(f"regard {__version__}")
        else:
            _parsed(arguments or ["--help"]).run()
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


def _parsed(arguments: list[str]) -> Any:
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise UnknownName("command", arguments[0], COMMANDS)
    if arguments[0] == "train" and len(arguments) > 1 and not arguments[1].startswith("-") and arguments[1] not in TASKS:
        raise UnknownName("task", arguments[1], TASKS)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(Command, prog="regard", description=DESCRIPTION, args=arguments, config=OPTIONS)
    except SystemExit as stop:
        if stop.code:
            print(f"regard: {_one_line(complaint.getvalue())}", file=sys.stderr)
        raise


def _one_line(box: str) -> str:
    """A framed message of several paragraphs as one line, which greps and logs better."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.strip().splitlines()]
    paragraphs = " ".join(line or "\n" for line in lines[1:]).split("\n")  # the first line is the title of the frame
    return "; ".join(" ".join(words) for words in (paragraph.split() for paragraph in paragraphs) if words)


def _pattern(text: str) -> Pattern:
    """A pattern, or an error that knows of the mechanisms too."""
    if text.replace("-", "_").isidentifier():  # one word, so perhaps a mistyped name
        from .patterns._parse import RULES, VALUES

        if text not in RULES and text not in VALUES:
            raise UnknownName(
                "mechanism, model, recipe or pattern",
                text,
                [*catalogue.mechanisms(), *catalogue.models(), *catalogue.recipes(), *VALUES, *RULES],
            )
    return parse(text)


def _print_entry(row: dict[str, Any], notes: dict[str, str]) -> None:
    console = _console()
    console.print(f"[bold]{escape(row['name'])}[/bold] ({escape(row['class'])}, {row['year']})", highlight=False)
    console.print(escape(row["summary"]) + "\n", highlight=False)
    can = [said for said, yes in _abilities(row) if yes]
    cannot = [said for said, yes in _abilities(row) if not yes]
    patterns = row.get("patterns", "any")
    said = {
        "Computes": row.get("formula", ""),
        "Cost": notes.get("Cost", f"time {row.get('time', '')}, memory {row.get('memory', '')}"),
        "Patterns": patterns if isinstance(patterns, str) else ", ".join(patterns),
        "Causal": row.get("causal", ""),
        "Can": ", ".join(can),
        "Cannot": ", ".join(cannot),
        "Use it": notes.get("Use it", ""),
        "Avoid it": notes.get("Avoid it", ""),
        "Limits": notes.get("Limits", ""),
        "Paper": f"{row.get('title', '')}, {row.get('paper', '')}",
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for heading, text in said.items():
        if text:
            table.add_row(f"[bold]{heading}[/bold]", escape(str(text)))
    console.print(table, highlight=False)


def _abilities(row: dict[str, Any]) -> list[tuple[str, bool]]:
    said = {
        "cross": "attend to another sequence",
        "streaming": "go step by step",
        "bias": "take a bias on its scores",
        "grouped": "share key heads",
    }
    return [(text, bool(row[fact])) for fact, text in said.items() if fact in row]


def _flat(found: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += [(name, value["note"])] if "note" in value else _flat(value, f"{name}: ")
        else:
            rows.append((before + name, (", ".join(value) or "none") if isinstance(value, list) else str(value)))
    return rows


def _console() -> Console:
    # rich takes a pipe for a terminal of 80 columns and folds there; a file has room
    return Console() if sys.stdout.isatty() else Console(width=160)


def _print_json(value: Any) -> None:
    print(json_.dumps(value, ensure_ascii=False, indent=2))


def _ready(path: Path) -> Path:
    if path.suffix.lower() != ".png":
        raise NotSupported(f"--png {path}: the picture is a PNG file, so the name must end in .png")
    _folder(path.parent)
    return path


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotSupported(f"cannot write to {path}: {error.strerror}; choose another place") from error
    return path


def _saved(path: Path, quiet: bool) -> None:
    print(f"wrote {path}", file=sys.stderr if quiet else sys.stdout)

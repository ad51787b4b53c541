"""What there is: list, show, env."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from tyro.conf import Positional

from .. import __version__, catalogue, kernels
from ..attention import Attention
from ..errors import NotSupported, RegardError, ShapeError, UnknownName
from ..look import Maps, capture
from ..machine import environment
from ..patterns import Pattern, causal, full, parse
from ..patterns._parse import RULES, VALUES
from ..runs import to_plain
from ._command import Command, check_writable, console, print_json, print_pairs, print_table

LONGEST = 200  # tokens; beyond that neither a terminal nor a glance holds the picture
COLUMNS = {  # of `regard list`: fact → heading
    "mechanisms": {"name": "name", "year": "year", "formula": "what it computes", "time": "time", "memory": "memory", "paper": "paper"},
    "models": {"name": "name", "year": "year", "title": "title", "paper": "paper"},
    "tasks": {"name": "name", "summary": "what it does", "model": "default model"},
    "recipes": {"name": "name", "year": "year", "title": "title", "takes": "takes", "paper": "paper"},
}
ABILITIES = {"cross": "attend to another sequence", "state": "stream step by step", "bias": "take a bias on its scores"}  # by fact


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List mechanisms, models, tasks or recipes.

    As in:  regard list mechanisms --json
    """

    what: Positional[str] = "mechanisms"
    """mechanisms, models, tasks or recipes."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if self.what not in COLUMNS:
            raise UnknownName("list", self.what, COLUMNS)
        rows, columns = catalogue.rows(self.what), COLUMNS[self.what]  # type: ignore[arg-type]  # checked above
        if self.json:
            return print_json(rows)
        print_table(list(columns.values()), [[str(row.get(key, "")) for key in columns] for row in rows])


@dataclass(frozen=True, kw_only=True)
class Show(Command):
    """Explain a mechanism, a model, a task or a recipe; draw a mechanism or a pattern.

    As in:  regard show softmax
            regard show "causal & (window(3) | tokens(0))" --length 20 --png pattern.png
    """

    name: Positional[str]
    """Name from `regard list`, or a pattern as written in Python."""
    png: Path | None = None
    """Also write the picture to this file."""
    length: int = 12
    """Tokens in the picture."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if not 2 <= self.length <= LONGEST:
            raise ShapeError(f"--length {self.length}: expected 2 to {LONGEST}")
        check_writable(self.png, "--png", ".png")
        try:
            entry = catalogue.find(self.name)
        except UnknownName:
            return self._pattern(_pattern(self.name))
        if entry in catalogue.tasks().values():
            return self._task(entry)
        self._entry(entry)

    def _pattern(self, pattern: Pattern) -> None:
        if pattern.heads > 16:
            raise ShapeError(f"`{pattern}` differs between {pattern.heads} heads; at most 16 are drawn")
        if self.json:
            mask_HLM = pattern.mask(self.length, self.length)[0].int().tolist()
            print_json({"pattern": str(pattern), "length": self.length, "mask_HLM": mask_HLM})
        else:
            print(pattern, pattern.draw(self.length), sep="\n")
        if self.png is not None:
            self._wrote(pattern.save_png(self.png, self.length))

    def _task(self, task: Any) -> None:
        row = catalogue.row(task)
        options = to_plain(task.Options())
        if self.json:
            return print_json(row | {"options": options, "train": to_plain(task.default_train)})
        console().print(f"[bold]{escape(row['name'])}[/bold] ({escape(row['class'])})", highlight=False)
        print(inspect.getdoc(task), end="\n\n")
        print_pairs([("Model", task.default_model), *((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())])
        print(f"\nregard train {task.name} --help explains them.")

    def _entry(self, entry: Any) -> None:
        row, notes, maps, why = catalogue.row(entry), catalogue.notes(entry), None, ""
        if entry in catalogue.mechanisms().values():
            try:
                maps = example(entry, self.length)
            except NotSupported as error:
                why = str(error)
        if self.json:
            drawn = {} if maps is None else {"pattern": maps.view().pattern, "weights_LM": maps.view().weights_BHLM[0, 0].tolist()}
            print_json(row | {"notes": notes} | drawn)
        else:
            _print_entry(row, notes)
            if maps is not None:
                print("\nIts weights where the second half of a sequence repeats the first (queries are rows, keys are columns):\n")
                maps.show()
            elif why:
                print(f"\nNo picture: {why}.")
        if self.png is not None:
            if maps is None:
                raise NotSupported(f"{self.name} has no weights to draw: {why or 'only mechanisms do'}")
            self._wrote(maps.save_png(self.png))

    def _wrote(self, path: Path) -> None:
        if not self.json:
            print(f"wrote {path}")


@dataclass(frozen=True, kw_only=True)
class Env(Command):
    """This machine, what regard found on it, and whether bfloat16 is safe.

    As in:  regard env --json
    """

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        found = {"regard": __version__, **environment(), "kernels": kernels.forms()}
        print_json(found) if self.json else print_pairs(_flat(found))


def _pattern(text: str) -> Pattern:
    """A pattern, or an error that knows of the mechanisms too."""
    if text.replace("-", "_").isidentifier() and text not in RULES and text not in VALUES:  # one word, so perhaps a mistyped name
        names = [name for kind in catalogue.KINDS for name in catalogue.listed(kind)]
        raise UnknownName("mechanism, model, task, recipe or pattern", text, [*names, *VALUES, *RULES])
    return parse(text)


def _print_entry(row: dict[str, Any], notes: dict[str, str]) -> None:
    console().print(f"[bold]{escape(row['name'])}[/bold] ({escape(row['class'])}, {row['year']})", highlight=False)
    console().print(escape(row["summary"]) + "\n", highlight=False)
    abilities = [(text, bool(row[fact])) for fact, text in ABILITIES.items() if fact in row]
    patterns = row.get("patterns", "any")
    lines = {
        "Computes": row.get("formula", ""),
        "Cost": notes.get("Cost", f"time {row.get('time', '')}, memory {row.get('memory', '')}"),
        "Patterns": patterns if isinstance(patterns, str) else ", ".join(patterns),
        "Causal": row.get("causal", ""),
        "Can": ", ".join(text for text, yes in abilities if yes),
        "Cannot": ", ".join(text for text, yes in abilities if not yes),
        "Use it": notes.get("Use it", ""),
        "Avoid it": notes.get("Avoid it", ""),
        "Limits": notes.get("Limits", ""),
        "Paper": f"{row.get('title', '')}, {row.get('paper', '')}",
    }
    print_pairs([(heading, str(text)) for heading, text in lines.items() if text])


def _flat(found: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += [(name, value["note"])] if "note" in value else _flat(value, f"{name}: ")
        else:
            rows.append((prefix + name, (", ".join(value) or "none") if isinstance(value, list) else str(value)))
    return rows


def example(mechanism: type[Attention], length: int = 12, seed: int = 0) -> Maps:
    """A mechanism as something to look at: the weights of one head; `causal` where the mechanism knows it.

    Keys equal queries, and the sequence repeats after half its length, so a mechanism that compares content shows two lines.
    """
    if not 2 <= length <= LONGEST:
        raise ShapeError(f"length={length}: expected 2 to {LONGEST}")
    width = 8
    with torch.random.fork_rng(devices=[]):  # the parameters of a mechanism are drawn from the global generator
        torch.manual_seed(seed)
        attention = mechanism.sized(heads=1, head_dim=width, length=length).eval()
        half = torch.randn(1, (length + 1) // 2, 1, width)
        x_BLHK = torch.cat([half, half], 1)[:, :length] * 1.5
        reasons = []
        for pattern in (causal, full):
            try:
                with torch.no_grad(), capture(attention) as maps:
                    attention(x_BLHK, x_BLHK, x_BLHK, pattern)
                names = [f"{n % len(half[0]) + 1}" for n in range(length)]
                return maps.label(names, names)
            except (RegardError, NotImplementedError) as error:
                reasons.append(str(error))
    raise NotSupported(f"{mechanism.__name__} has no example to draw: {reasons[-1]}")

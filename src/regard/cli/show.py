"""Lists and explanations: list, show, env. Facts and pictures come from a cache; PyTorch is imported to draw others."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from .. import __version__
from ..catalogue import absent, fold
from ..errors import NotSupported, ShapeError, UnknownName
from ..files import read_json
from . import _facts
from ._command import Command, bold, check_writable, print_json, print_pairs, print_table
from ._help import split_examples

if TYPE_CHECKING:
    from ..attention import Attention
    from ..look import Maps
    from ..patterns import Pattern

LENGTH = 12  # tokens in the pictures of the cache
LONGEST = 200  # tokens; beyond that neither a terminal nor a glance holds the picture
COLUMNS = {  # of `regard list`: fact → heading
    "mechanisms": {"name": "name", "year": "year", "formula": "what it computes", "time": "time", "memory": "memory", "paper": "paper"},
    "models": {"name": "name", "year": "year", "title": "title", "paper": "paper"},
    "tasks": {"name": "name", "summary": "what it does", "model": "default model"},
    "recipes": {"name": "name", "summary": "question", "takes": "takes", "paper": "paper"},
    "patterns": {"name": "name", "arguments": "arguments", "summary": "who may attend to whom"},
}
OPTIONAL = ("memory", "time", "paper", "takes")  # left out of a narrow terminal, in this order
ABILITIES = {"cross": "attend to another sequence", "state": "stream step by step", "bias": "take a bias on its scores"}  # by fact


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List mechanisms, models, tasks, recipes or patterns.

    As in:  regard list
            regard list models
            regard list mechanisms --json
    """

    what: Positional[str] = "mechanisms"
    """mechanisms, models, tasks, recipes or patterns."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if self.what not in COLUMNS:
            raise UnknownName("list", self.what, COLUMNS)
        rows, columns = _facts.entries(self.what), COLUMNS[self.what]
        if self.json:
            return print_json(rows)
        cells = [[str(row.get(key, "")) for key in columns] for row in rows]
        print_table(list(columns.values()), cells, [name for name in OPTIONAL if name in columns])


@dataclass(frozen=True, kw_only=True)
class Show(Command):
    """Explain a mechanism, model, task or recipe; draw a pattern.

    As in:  regard show softmax
            regard show gpt2
            regard show "causal & (window(3) | tokens(0))" --length 20 --png pattern.png
    """

    name: Positional[str]
    """Name from `regard list`, or a pattern as written in Python."""
    png: Path | None = None
    """Also write the picture to this file."""
    length: int = LENGTH
    """Tokens in the picture."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if not 2 <= self.length <= LONGEST:
            raise ShapeError(f"--length {self.length}: expected 2 to {LONGEST}")
        check_writable(self.png, "--png", ".png")
        found = find(self.name)
        if not found:
            return self._pattern(_pattern(self.name))
        if "mechanisms" in found:
            return self._mechanism(found["mechanisms"])
        if self.png is not None:
            raise NotSupported(f"--png {self.png}: {self.name} has no weights to draw; only mechanisms and patterns do")
        if self.json:
            return print_json(found if len(found) > 1 else next(iter(found.values())))
        for number, (kind, entry) in enumerate(found.items()):
            print(end="\n" * (number > 0))
            _heading(entry)
            {"models": _print_model, "tasks": _print_task, "recipes": _print_recipe}[kind](entry)

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

    def _mechanism(self, entry: dict[str, Any]) -> None:
        if self.json:
            return self._mechanism_json(entry)
        _heading(entry)
        _print_mechanism(entry)
        print(flush=True)  # before a picture that takes the seconds of importing PyTorch
        if self.png is None and self.length == LENGTH:
            return print(_facts.picture(entry["name"]))
        try:
            maps = self._maps(entry)
        except NotSupported as error:
            if self.png is not None:
                raise
            return print(f"No picture: {error}.")
        print(_picture(maps))
        if self.png is not None:
            self._wrote(maps.save_png(self.png))

    def _mechanism_json(self, entry: dict[str, Any]) -> None:
        try:
            maps = self._maps(entry)
        except NotSupported:
            if self.png is not None:
                raise
            return print_json(entry)
        print_json(entry | {"pattern": maps.view().pattern, "weights_LM": maps.view().weights_BHLM[0, 0].tolist()})
        if self.png is not None:
            maps.save_png(self.png)

    def _maps(self, entry: dict[str, Any]) -> Maps:
        from ..attention import find_mechanism
        from ..look.examples import example

        return example(find_mechanism(entry["name"]), self.length)

    def _wrote(self, path: Path) -> None:
        if not self.json:
            print(f"wrote {path}")


@dataclass(frozen=True, kw_only=True)
class Env(Command):
    """Report this machine, and whether bfloat16 is safe on it.

    As in:  regard env --json
    """

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        import sys

        from .. import kernels
        from ..machine import environment

        print("Measuring bfloat16; the first time this takes some seconds …", file=sys.stderr, flush=True)
        found = {"regard": __version__, **environment(), "kernels": kernels.forms()}
        print_json(found) if self.json else print_pairs(_flat(found))


def find(name: str) -> dict[str, dict[str, Any]]:
    """Entries called `name`, by kind; also by class, or by a published size of a model. A model and its task may share a name."""
    found: dict[str, dict[str, Any]] = {}
    for kind in ("mechanisms", "models", "tasks", "recipes"):
        for entry in _facts.entries(kind):
            names = [entry["name"], *([] if kind == "recipes" else [entry["class"]]), *entry.get("sizes", ())]
            if fold(name) in map(fold, names):
                found.setdefault(kind, entry)
    return found


def _pattern(text: str) -> Pattern:
    """A pattern, or an error that knows of the mechanisms too."""
    rules = [row["name"] for row in _facts.entries("patterns")]
    if text.replace("-", "_").isidentifier() and text not in rules:  # one word, so perhaps a mistyped name
        names = [row["name"] for kind in ("mechanisms", "models", "tasks", "recipes") for row in _facts.entries(kind)]
        raise UnknownName("mechanism, model, task, recipe or pattern", text, [*names, *rules], absent(text))
    from ..patterns import parse

    return parse(text)


def _heading(entry: dict[str, Any]) -> None:
    facts = ", ".join(str(fact) for fact in (entry["class"], entry.get("year")) if fact)
    print(f"{bold(entry['name'])} ({facts})\n{entry['summary']}\n")


def _paper(entry: dict[str, Any]) -> str:
    return f"{entry['title']}, {entry['paper']}"


def _print_mechanism(entry: dict[str, Any]) -> None:
    notes, patterns = entry["notes"], entry["patterns"]
    abilities = [(text, bool(entry[fact])) for fact, text in ABILITIES.items()]
    lines = {
        "Computes": entry["formula"],
        "Cost": notes.get("Cost", f"time {entry['time']}, memory {entry['memory']}"),
        "Patterns": patterns if isinstance(patterns, str) else ", ".join(patterns),
        "Causal": entry["causal"],
        "Can": ", ".join(text for text, yes in abilities if yes),
        "Cannot": ", ".join(text for text, yes in abilities if not yes),
        **{heading: notes.get(heading, "") for heading in ("Use it", "Avoid it", "Limits")},
        "Paper": _paper(entry),
    }
    print_pairs([(heading, text) for heading, text in lines.items() if text])


def _print_model(entry: dict[str, Any]) -> None:
    notes = {heading: entry["notes"].get(heading, "") for heading in ("Cost", "Use it", "Avoid it", "Limits")} | {"Paper": _paper(entry)}
    print_pairs([(heading, text) for heading, text in notes.items() if text])
    print("\nSettings (--set NAME=VALUE):\n")
    rows = [[row["name"], row["default"] or "(from the data)", row["meaning"]] for row in entry["settings"]]
    print_table(["setting", "default", "meaning"], rows)
    if entry["sizes"]:
        print()
        print_pairs([("Published sizes (--model NAME)", ", ".join(entry["sizes"]))])


def _print_task(entry: dict[str, Any]) -> None:
    print_pairs([("Model", entry["model"]), *((f"--{name.replace('_', '-')}", str(value)) for name, value in entry["options"].items())])
    print("\nExamples:", *(f"  {line}" for line in split_examples(entry["doc"])[1]), sep="\n")
    print(f"\nregard train {entry['name']} --help explains the options.")


def _print_recipe(entry: dict[str, Any]) -> None:
    print_pairs(
        [
            ("Takes", f"{entry['takes']} on two CPU cores, for all seeds ({', '.join(map(str, entry['seeds']))})"),
            ("Compares", "; ".join(entry["variants"])),
            *(("Claim", claim) for claim in entry["claims"]),
            ("Paper", _paper(entry)),
            ("Run", f"regard run {entry['name']}"),
        ]
    )
    _print_record(entry["name"])


def _print_record(name: str) -> None:
    """Print the stored result of a recipe, if there is one."""
    path = Path(__file__).parents[3] / "docs" / "results" / f"{name}.json"
    path = path if path.is_file() else Path(__file__).parents[1] / "recipes" / "results" / f"{name}.json"
    if not path.is_file():
        return
    record = read_json(path)
    print(f"\nRun at {', '.join(record['commits'])}, {record['date']}, seeds {', '.join(map(str, record['seeds']))}; {record['machine']}:")
    print_table(("", "claim", "measured"), [(claim["decision"], claim["claim"], claim["evidence"]) for claim in record["claims"]])


def _flat(found: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += [(name, value["note"])] if "note" in value else _flat(value, f"{name}: ")
        else:
            rows.append((prefix + name, (", ".join(value) or "none") if isinstance(value, list) else str(value)))
    return rows


def draw_example(mechanism: type[Attention]) -> str:
    """Draw the picture of a mechanism that the cache keeps, or say why there is none."""
    from ..look.examples import example

    try:
        return _picture(example(mechanism, LENGTH))
    except NotSupported as error:
        return f"No picture: {error}."


def _picture(maps: Maps) -> str:
    drawn = io.StringIO()
    maps.show(file=drawn)
    return f"Its weights where the second half of a sequence repeats the first (queries are rows, keys are columns):\n\n{drawn.getvalue()}".rstrip()

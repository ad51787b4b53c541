"""Commands that measure: compare, check, run."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from .. import catalogue
from ..compare.options import CompareOptions
from ..errors import BadConfig, UnknownName
from ._command import Command, check_writable, console, writable_folder


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Measure what mechanisms cost on this machine.

    Prints time and memory, and the length from which each mechanism is faster than exact attention.

    As in:  regard compare
            regard compare linear local performer --lengths 512 2048 8192 --width 512 --heads 8 --plot cost.png
    """

    mechanisms: Positional[tuple[str, ...]] = ()
    """Names from `regard list`; all if none is given."""
    options: CompareOptions = field(default_factory=CompareOptions)
    json: Path | None = None
    """Write everything to this file; - for standard output, without tables."""
    plot: Path | None = None
    """Plot time against length and save it as this PNG file."""
    html: Path | None = None
    """Save the lineage page with these measurements as this HTML file: all mechanisms by year and family."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        from ..compare import compare

        for path, suffix, option in ((self.plot, ".png", "--plot"), (self.html, ".html", "--html"), (self.json, "", "--json")):
            check_writable(path, option, suffix)  # before minutes are spent
        found = compare(self.mechanisms or None, self.options, progress=not self.quiet)
        if self.plot is not None:
            found.plot(self.plot)
        if self.html is not None:
            from ..look.lineage import costs_of, save_html

            save_html(self.html, costs_of([found.to_json()]))
        if self.json == Path("-"):
            print(found.to_json())
            return
        if self.json is not None:
            self.json.write_text(found.to_json() + "\n", encoding="utf-8")
        out = console(width=200)
        out.print(f"{found.machine}; {found.seconds:.0f} s\n", highlight=False, markup=False)
        for table in found.tables(out.width):
            out.print(table, "")
        if found.noise > 0.25:
            print(f"Repeats differ by {found.noise:.0%}: something else is running, so small differences mean nothing.\n")
        for line in found.refusals():
            out.print(line, highlight=False, markup=False)
        for path in (self.json, self.plot, self.html):
            if path is not None:
                print(f"wrote {path}")


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Check a mechanism, model, task, pattern, recipe or checkpoint family against its contract.

    The exit code is 1 if a check fails.

    As in:  regard check my_module:MyAttention
            regard check "my_module:MyAttention(block=4)"
            regard check "my_module:MyModel(vocab_size=50, width=16)"
            regard check "my_module:Sets(data='sets.jsonl', input='[[0.2], [0.7]]')"
            regard check linear --only law memory
    """

    name: Positional[str]
    """module:Name, with the module importable from the current directory, or a name from `regard list`; with settings, as in "local(radius=2)"."""
    only: tuple[str, ...] = ()
    """Run these checks only; all by default."""

    def run(self) -> None:
        from ..layers.spec import split_call
        from ..testing import find, run_checks

        name, settings = split_call(self.name)
        failed = 0
        for result in run_checks(import_from_here(name) if ":" in name else find(name), self.only or None, settings):
            print(result, flush=True)
            failed += result.outcome == "failed"
        print(f"{failed} failed" if failed else "All checks passed")
        if failed:
            raise SystemExit(1)


def import_from_here(name: str) -> Any:
    """The object called `module:Name`, importable from the current directory."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadConfig(f"{name}: {error}; expected module:Class, importable from the current directory") from error
    finally:
        sys.path.remove("")


@dataclass(frozen=True, kw_only=True)
class Run(Command):
    """Reproduce a paper's claim, and write a report.

    Every recipe also trains the ablation that must lose.

    As in:  regard run memory2020
            regard run complexity2017 --out results --seeds 0 1
    """

    name: Positional[str]
    """Name from `regard list recipes`."""
    out: Path | None = None
    """Folder for results.json and report.html; runs/NAME if not given."""
    seeds: tuple[int, ...] = ()
    """Random seeds; if not given, as many of the recipe's own (3, 5 or 8) as it takes to decide its claims."""
    quick: bool = False
    """Train a tenth of the steps with one seed and without tuning: the pictures in at most a minute or so, and no decision."""
    strict: bool = False
    """Exit with 1 unless every claim holds."""

    def run(self) -> None:
        from .. import recipes

        known = catalogue.recipes()
        if self.name not in known:
            raise UnknownName("recipe", self.name, known)
        from ..machine import keep_memory

        keep_memory()
        out = writable_folder(self.out or Path("runs") / self.name)
        outcome = recipes.run(known[self.name], out, self.seeds or None, quick=self.quick)
        counts = Counter(verdict.decision for verdict in outcome.verdicts)
        print(f"{', '.join(f'{n} {decision}' for decision, n in counts.items())}; {outcome.seconds:.0f} s. wrote {out / 'report.html'}")
        if self.quick or len(outcome.results.seeds) < recipes.LOOKS[0]:
            print(f"Claims are decided with {recipes.LOOKS[0]} seeds and more, and with all steps.")
        if self.strict and not outcome.held:
            raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Train two small translators and see how they align words.

    They translate English number words into German. Takes about two minutes.

    As in:  regard demo --out pictures
    """

    out: Path = Path("demo")
    """Folder for runs, pictures and report.html."""
    steps: int = 600
    """Training steps of each of the two models."""
    seed: int = 0
    """Random seed of the initial parameters, the data order and dropout."""
    resume: bool = False
    """Continue a demo that was interrupted."""

    def run(self) -> None:
        from .demo import run_demo

        run_demo(writable_folder(self.out), steps=self.steps, seed=self.seed, resume=self.resume)

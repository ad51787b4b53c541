"""`regard run RECIPE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from .. import catalogue
from ..errors import UnknownName
from ..machine import keep_memory
from ._command import Command, writable_folder


@dataclass(frozen=True, kw_only=True)
class Run(Command):
    """Reproduce a paper's claim beside the ablation that must lose, and write a report.

    As in:  regard run memory2020
            regard run complexity2017 --out results --seeds 0 1
    """

    name: Positional[str]
    """Name from `regard list recipes`."""
    out: Path | None = None
    """Folder for results.json and report.html; runs/NAME if not given."""
    seeds: tuple[int, ...] = ()
    """Random seeds; the recipe's own if not given."""

    def run(self) -> None:
        from .. import recipes

        known = catalogue.recipes()
        if self.name not in known:
            raise UnknownName("recipe", self.name, known)
        keep_memory()
        outcome = recipes.run(known[self.name], writable_folder(self.out or Path("runs") / self.name), self.seeds or None)
        verdict = "All claims hold" if outcome.held else "Not all claims hold"
        print(f"{verdict}; {outcome.seconds:.0f} s. wrote {outcome.out / 'report.html'}")

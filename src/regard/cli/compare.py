"""`regard compare`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import Positional

from ..compare.options import CompareOptions
from ._command import Command, check_writable


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """What mechanisms cost on this machine, and from which length each beats exact attention.

    As in:  regard compare
            regard compare linear local performer --lengths 512 2048 8192 --width 512 --heads 8 --plot cost.png
    """

    mechanisms: Positional[tuple[str, ...]] = ()
    """Names from `regard list`; all if none is given."""
    options: CompareOptions = field(default_factory=CompareOptions)
    json: Path | None = None
    """Write everything to this file; - for standard output, without tables."""
    plot: Path | None = None
    """Draw time against length into this .png."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        from rich.console import Console

        from ..compare import compare

        for path, suffix, option in ((self.plot, ".png", "--plot"), (self.json, "", "--json")):
            check_writable(path, option, suffix)  # before minutes are spent
        found = compare(self.mechanisms or None, self.options, progress=not self.quiet)
        if self.plot is not None:
            found.plot(self.plot)
        if self.json == Path("-"):
            print(found.to_json())
            return
        if self.json is not None:
            self.json.write_text(found.to_json() + "\n", encoding="utf-8")
        console = Console() if sys.stdout.isatty() else Console(width=200)
        console.print(f"{found.machine}; {found.seconds:.0f} s\n", highlight=False, markup=False)
        console.print(found.table(), "")
        if len(found.options.lengths) > 1:
            console.print(found.by_length("train"), "")
        if found.noise > 0.25:
            print(f"Repeats differ by {found.noise:.0%}: something else is running, so small differences mean nothing.\n")
        for line in found.refusals():
            console.print(line, highlight=False, markup=False)
        for path in (self.json, self.plot):
            if path is not None:
                print(f"wrote {path}")

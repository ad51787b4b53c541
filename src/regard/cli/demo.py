"""`regard demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ._command import Command, writable_folder


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Train two translators of number words, English to German, and see how they align.

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
        from ._demo import run_demo

        run_demo(writable_folder(self.out), steps=self.steps, seed=self.seed, resume=self.resume)

"""Progress of a long computation: a bar, or plain lines where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Plain lines on standard error; nothing where `silent` (all ranks but 0)."""

    def __init__(self, silent: bool = False):
        self.silent, self._last = silent, -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, text: str, share: float) -> None:
        """What is being done, and the share of the whole that is done."""
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.say(f"{text}  {share:.0%}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.silent:
            print(text, file=sys.stderr, flush=True)


class Bar(Progress):
    """The same with a progress bar by rich; a `transient` one vanishes at the end."""

    def __init__(self, transient: bool = False):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__()
        columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._rich = RichProgress(*columns, console=Console(stderr=True), transient=transient)
        self._task = self._rich.add_task("starting", total=1.0)

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._rich.stop()

    def update(self, text: str, share: float) -> None:
        self._rich.update(self._task, completed=share, description=text)

    def say(self, text: str) -> None:
        self._rich.console.print(text, markup=False, highlight=False)


def progress_for(bar: bool, silent: bool, transient: bool = False) -> Progress:
    """A bar if it is wanted and standard error is a terminal; plain lines otherwise."""
    return Bar(transient) if bar and not silent and sys.stderr.isatty() else Progress(silent)


def describe(values: Mapping[str, Any], left: float | None) -> str:
    """step 120  loss 3.142  lr 0.0007  12,345 tokens/s  2 min left"""
    parts = [f"step {values['step']}  loss {values['loss']:.4f}", f"lr {values['lr']:.3g}", f"{values['tokens_per_second']:,.0f} tokens/s"]
    if left is not None:
        parts.append(f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left")
    if values.get("skipped"):
        parts.append(f"{values['skipped']} skipped")
    return "  ".join(parts)

"""What a person sees while a model trains: a bar with loss, speed and time left, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Self

from .config import Budget

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Plain lines on standard error; says nothing where `silent` (all processes but the first)."""

    def __init__(self, budget: Budget, silent: bool = False):
        self.budget, self.silent = budget, silent
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def step(self, values: Mapping[str, Any], share: float, left: float | None) -> None:
        """A window of steps is over; `share` of the budget is used, `left` seconds remain."""
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.say(f"step {values['step']}  {describe(values, left)}  {share:.0%}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.silent:
            print(text, file=sys.stderr, flush=True)


class Bar(Progress):
    """The same with one moving line below, drawn by rich."""

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._rich = RichProgress(*columns, console=Console(stderr=True))
        self._rich.start()
        self._task = self._rich.add_task("starting", total=1.0)
        return self

    def __exit__(self, *exc: object) -> None:
        self._rich.stop()

    def step(self, values: Mapping[str, Any], share: float, left: float | None) -> None:
        self._rich.update(self._task, completed=share, description=f"step {values['step']}  {describe(values, left)}")

    def say(self, text: str) -> None:
        self._rich.console.print(text, markup=False, highlight=False)


def progress_for(budget: Budget, wanted: bool, first: bool) -> Progress:
    """A bar if it is wanted and standard error is a terminal; plain lines otherwise; nothing from any process but the first."""
    if first and wanted and sys.stderr.isatty():
        return Bar(budget)
    return Progress(budget, silent=not first)


def describe(values: Mapping[str, Any], left: float | None) -> str:
    """loss 3.142  lr 0.0007  12,345 tokens/s  2 min left"""
    parts = [f"loss {values['loss']:.4f}", f"lr {values['lr']:.3g}", f"{values['tokens_per_second']:,.0f} tokens/s"]
    if left is not None:
        parts.append(f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left")
    if values.get("skipped"):
        parts.append(f"{values['skipped']} skipped")
    return "  ".join(parts)

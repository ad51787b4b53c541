"""What a run reports: metrics.jsonl (what happened, one JSON object per line, in order and never twice), TensorBoard, progress."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..errors import NotSupported
from .checkpoint import cannot

SECONDS_BETWEEN_LINES = 10.0


class Log:
    """Lines are written at once. A checkpoint stores the length of the file; resuming truncates what came after.

    `curves` get every line, and are flushed before each checkpoint.
    """

    def __init__(self, path: Path, length: int = 0, curves: TensorBoard | None = None):
        self._path, self._curves = path, curves
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)  # a line is one write: it is in the file or it is not
            # up to a line end: somebody may have shortened the file since the checkpoint
            self._file.truncate(path.read_bytes()[:length].rfind(b"\n") + 1)
        except OSError as error:
            raise cannot(path, error) from error

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Write one line. Infinity and NaN, which JSON lacks, become null."""
        line = {"event": event, **{key: _plain(value) for key, value in values.items()}}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            if self._curves:
                self._curves.write(event, values)
        except OSError as error:
            raise cannot(self._path, error) from error

    def length(self) -> int:
        """Bytes that are synced to disk."""
        if self._curves:
            self._curves.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        if self._curves:
            self._curves.close()
        self._file.close()


def read_metrics(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl (or of that file in a run directory); with `event` (train, evaluation, skip, final) only these."""
    with (path / "metrics.jsonl" if path.is_dir() else path).open("rb") as file:
        lines = [json.loads(line) for line in file if line.endswith(b"\n")]
    return [line for line in lines if event in (None, line["event"])]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- TensorBoard: `tensorboard --logdir runs` shows all runs below a folder --------------------------------------------


def writer() -> Any:
    """The class that writes event files; an error says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise NotSupported(
            "TensorBoard is not installed; pip install 'regard[tensorboard]', or leave it out: metrics.jsonl has the same numbers"
        ) from error
    return SummaryWriter


class TensorBoard:
    """train/loss, evaluation/chrf, … over steps. Resuming from `step` hides what was written after it."""

    def __init__(self, folder: Path, step: int = 0):
        self._writer = writer()(str(folder), purge_step=step + 1 if step else None)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Finite numbers of training and evaluation events."""
        if event in ("train", "evaluation"):
            for name, value in values.items():
                if name != "step" and math.isfinite(value):
                    self._writer.add_scalar(f"{event}/{name}", value, values["step"])

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


# -- progress: a bar, or plain lines where there is no terminal --------------------------------------------------------


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

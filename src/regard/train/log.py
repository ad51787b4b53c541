"""Reports of a run: metrics.jsonl (what happened, one JSON object per line, in order and never twice), TensorBoard, progress."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from .._extras import extra
from ..errors import BadFile, NotSupported
from ..files import cannot, check_regular, make_folder, parse_json, sync

SECONDS_BETWEEN_LINES = 10.0
LONGEST = 1 << 20  # bytes of a line
HINT = "or leave it out: metrics.jsonl has the same numbers"
TAIL = 1 << 16  # bytes that are read at the end of the file


class Log:
    """Lines are written at once. A checkpoint stores the length of the file; resuming truncates what came after.

    `curves` get every line, and are flushed before each checkpoint.
    """

    def __init__(self, path: Path, length: int = 0, curves: TensorBoard | Curves | None = None):
        self._path, self._curves = path, curves
        try:
            make_folder(path.parent)
            if path.exists():
                check_regular(path)
            self._file = path.open("ab", buffering=0)  # a line is one write: it is in the file or it is not
        except OSError as error:
            raise cannot(path, error) from error
        try:
            self._file.truncate(_last_line_end(path, length))
            sync(path)
            sync(path.parent)
        except OSError as error:
            self._file.close()
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
        try:
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise cannot(self._path, error) from error

    def close(self) -> None:
        if self._curves:
            self._curves.close()
        self._file.close()


def _last_line_end(path: Path, length: int) -> int:
    """The end of the last whole line within `length`: somebody may have shortened the file since the checkpoint."""
    with path.open("rb") as file:
        size = min(max(length, 0), os.fstat(file.fileno()).st_size)
        while size:
            begin = max(size - TAIL, 0)
            file.seek(begin)
            if found := file.read(size - begin).rfind(b"\n") + 1:
                return begin + found
            size = begin
    return 0


def read_metrics(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl.

    A line that is not an object with an event is BadFile, one without its end is not yet written.

    Args:
        path: the file, or a run directory.
        event: kind of lines to keep: train, evaluation, skip or final; None: all.
    """
    path = path / "metrics.jsonl" if path.is_dir() else path
    check_regular(path)
    try:
        with path.open("rb") as file:
            lines = []
            for line in iter(lambda: file.readline(LONGEST), b""):
                if len(line) == LONGEST:  # or a file of a terabyte without a line break would be read to its end
                    raise BadFile(f"{path}: a line of {LONGEST:,} bytes or more")
                if line.endswith(b"\n"):
                    lines.append(_event(line, path))
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror or error}") from error
    return [line for line in lines if event in (None, line["event"])]


def last_event(path: Path) -> dict[str, Any] | None:
    """The last whole line of metrics.jsonl, without reading the rest; None if there is none."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            file.seek(-min(TAIL, os.fstat(file.fileno()).st_size), os.SEEK_END)
            lines = file.read(TAIL).split(b"\n")[:-1]
    except (OSError, BadFile):
        return None
    return _event(lines[-1], path) if lines else None


def _event(line: bytes, path: Path) -> dict[str, Any]:
    found = parse_json(line, path)
    if not isinstance(found, dict) or not isinstance(found.get("event"), str):
        raise BadFile(f"{path}: a line that is not an object with an event: {line[:60]!r}")
    return found


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- TensorBoard: `tensorboard --logdir runs` shows all runs below a folder --------------------------------------------


def writer() -> Any:
    """The class that writes event files; an error says how to install it."""
    with extra("tensorboard", HINT):
        import tensorboard  # noqa: F401  PyTorch's module needs it, and names it in no error
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter


class TensorBoard:
    """train/loss, evaluation/chrf, … over steps. Resuming from `step` hides what was written after it."""

    def __init__(self, folder: Path, step: int = 0):
        self._writer = writer()(str(folder), purge_step=step + 1 if step else None)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Finite numbers of training and evaluation events."""
        for name, value in _numbers(event, values).items():
            self._writer.add_scalar(name, value, values["step"])

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


# -- Weights & Biases, MLflow: the same numbers under the same names ----------------------------------------------------


class WandB:
    """A run of Weights & Biases, named after the folder; a resumed run continues the same one."""

    def __init__(self, folder: Path, step: int = 0):
        module = _tracker("wandb")
        with _one_line("Weights & Biases"):
            self._run = module.init(name=folder.resolve().name, id=_digest(folder), resume="allow", dir=str(folder))

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        if numbers := _numbers(event, values):
            self._run.log(numbers, step=values["step"])

    def flush(self) -> None:
        pass  # its own process sends what it got

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, named after the folder; a resumed run continues the one whose id was kept beside the checkpoints."""

    def __init__(self, folder: Path, step: int = 0):
        self._module, kept = _tracker("mlflow"), folder / "mlflow-run.txt"
        old = kept.read_text(encoding="utf-8").strip() if step and kept.exists() else None
        with _one_line("MLflow"):
            run = self._module.start_run(run_id=old) if old else self._module.start_run(run_name=folder.resolve().name)
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(run.info.run_id + "\n", encoding="utf-8")

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        if numbers := _numbers(event, values):
            self._module.log_metrics(numbers, step=values["step"])

    def flush(self) -> None:
        pass  # every call is a request of its own

    def close(self) -> None:
        self._module.end_run()


def _tracker(name: str) -> Any:
    with extra(name, HINT):
        module = import_module(name)
    return module


@contextmanager
def _one_line(title: str) -> Iterator[None]:
    """Whatever keeps a tracker from starting, such as a wrong address or no account, as one line."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise NotSupported(
            f"{title} cannot start: {reason}; change its settings, or leave it out: metrics.jsonl has the same numbers"
        ) from error


def _numbers(event: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers of training and evaluation events."""
    if event not in ("train", "evaluation"):
        return {}
    return {f"{event}/{name}": value for name, value in values.items() if name != "step" and math.isfinite(value)}


def _digest(folder: Path) -> str:
    return hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()


class Curves:
    """Several of these as one."""

    KINDS: ClassVar[dict[str, Any]] = {"wandb": WandB, "mlflow": MLflow}

    def __init__(self, wanted: Sequence[str], folder: Path, step: int):
        self._all: list[Any] = [TensorBoard(folder / "tensorboard", step)] if "tensorboard" in wanted else []
        self._all += [kind(folder, step) for name, kind in self.KINDS.items() if name in wanted]

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        for each in self._all:
            each.write(event, values)

    def flush(self) -> None:
        for each in self._all:
            each.flush()

    def close(self) -> None:
        for each in self._all:
            each.close()


def check_installed(wanted: Sequence[str]) -> None:
    """Raise an error for what is wanted and not installed, before anything is written."""
    if "tensorboard" in wanted:
        writer()
    for name in ("wandb", "mlflow"):
        if name in wanted:
            _tracker(name)


# -- progress: a bar, or plain lines where there is no terminal --------------------------------------------------------


class ProgressBar:
    """Plain lines on standard error; nothing where `silent` (all ranks but 0)."""

    def __init__(self, silent: bool = False):
        self.silent, self._last = silent, -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, text: str, share: float) -> None:
        """Show the work in progress, and the share of the whole that is done."""
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.say(f"{text}  {share:.0%}")

    def say(self, text: str) -> None:
        """A line that stays. When nobody reads any more, as after the terminal was closed, training goes on without a word."""
        if not self.silent:
            try:
                self._write(text)
            except OSError:  # metrics.jsonl has the same numbers
                self.silent = True

    def _write(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(ProgressBar):
    """A log with a progress bar by rich; a `transient` one vanishes at the end."""

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

    def _write(self, text: str) -> None:
        self._rich.console.print(text, markup=False, highlight=False)


def progress_for(bar: bool, silent: bool, transient: bool = False) -> ProgressBar:
    """A bar if it is wanted and standard error is a terminal; plain lines otherwise."""
    return Bar(transient) if bar and not silent and sys.stderr.isatty() else ProgressBar(silent)


def describe(values: Mapping[str, Any], unit: str, left: float | None) -> str:
    """step 120  loss 3.142  lr 0.0007  12,345 tokens/s  2 min left"""
    parts = [f"step {values['step']}  loss {values['loss']:.4f}", f"lr {values['lr']:.3g}", f"{values['tokens_per_second']:,.0f} {unit}/s"]
    if left is not None:
        parts.append(f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left")
    if values.get("skipped"):
        parts.append(f"{values['skipped']} skipped")
    return "  ".join(parts)

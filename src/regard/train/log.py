"""metrics.jsonl: what happened, one JSON object per line, in order and never twice."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .checkpoint import cannot


class Sink(Protocol):
    """Another receiver of the same events."""

    def write(self, event: str, values: Mapping[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Log:
    """Lines are written at once. A checkpoint stores the length of the file; resuming truncates what came after.

    The sinks get every line, and are flushed before each checkpoint.
    """

    def __init__(self, path: Path, length: int = 0, sinks: Sequence[Sink] = ()):
        self._path, self._sinks = path, sinks
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)  # a line is one write: it is in the file or it is not
            self._file.truncate(_whole_lines(path, length))
        except OSError as error:
            raise cannot(path, error) from error

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Write one line. Infinity and NaN, which JSON lacks, become null."""
        line = {"event": event, **{key: _plain(value) for key, value in values.items()}}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            for sink in self._sinks:
                sink.write(event, values)
        except OSError as error:
            raise cannot(self._path, error) from error

    def length(self) -> int:
        """Bytes that are synced to disk."""
        for sink in self._sinks:
            sink.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._file.close()


def read_metrics(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl (or of that file in a run directory); with `event` (train, evaluation, skip, final) only these."""
    with (path / "metrics.jsonl" if path.is_dir() else path).open("rb") as file:
        lines = [json.loads(line) for line in file if line.endswith(b"\n")]
    return [line for line in lines if event in (None, line["event"])]


def _whole_lines(path: Path, length: int) -> int:
    """At most `length`, up to a line end: somebody may have shortened the file since the checkpoint."""
    content = path.read_bytes()[:length]
    return content.rfind(b"\n") + 1


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

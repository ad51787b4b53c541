"""metrics.jsonl: what happened, one JSON object a line, in order and never twice."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .checkpoint import cannot


class Sink(Protocol):
    """Whoever wants to hear the same."""

    def write(self, event: str, values: Mapping[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Log:
    """Lines are flushed as they come. A checkpoint remembers how long the file was; going on from it cuts what came after.

    The sinks are told every line, and asked to flush whenever a checkpoint is about to be made.
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
        """One line. JSON has no word for infinity or not-a-number; they become null."""
        line = {"event": event, **{key: _plain(value) for key, value in values.items()}}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            for sink in self._sinks:
                sink.write(event, values)
        except OSError as error:
            raise cannot(self._path, error) from error

    def length(self) -> int:
        """How many bytes are safely on the disk."""
        for sink in self._sinks:
            sink.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines."""
    with path.open("rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]


def _whole_lines(path: Path, length: int) -> int:
    """At most `length`, and no part of a line: the file may be shorter than the checkpoint remembers if somebody touched it."""
    content = path.read_bytes()[:length]
    return content.rfind(b"\n") + 1


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""metrics.jsonl: what happened, one JSON object a line, in order and never twice."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Log:
    """Lines are flushed as they come. A checkpoint remembers how long the file was; going on from it cuts what came after."""

    def __init__(self, path: Path, length: int = 0):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._file.truncate(_whole_lines(path, length))

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """One line. JSON has no word for infinity or not-a-number; they become null."""
        line = {"event": event, **{key: _plain(value) for key, value in values.items()}}
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def length(self) -> int:
        """How many bytes are safely on the disk."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
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

"""Ctrl-C and SIGTERM: the first makes the loop finish its step and save, the second ends the process at once.

Under torchrun one Ctrl-C arrives twice, from the terminal and from the launcher, so a signal within `REPEAT` seconds of the first is the same.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

REPEAT = 2.0


class Signals:
    """Inside `with`, signals are only recorded. `asked` is the first one, or None."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._asked_at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers in the main thread only
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked, self._asked_at = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._asked_at > REPEAT:
            os._exit(128 + number)

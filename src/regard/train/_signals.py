"""Ctrl-C and SIGTERM: the first makes the loop finish its step and save, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Self


class Signals:
    """Inside `with`, signals are only recorded. `asked` is the first one, or None."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
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
        if self.asked is not None:
            os._exit(128 + number)
        self.asked = signal.Signals(number)

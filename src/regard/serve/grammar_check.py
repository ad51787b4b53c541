"""Bounds of the grammars of requests: each is tried in a child process, with limits on time and memory, before this process compiles it."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from pathlib import Path

from .._extras import extra
from ..compare.process import Child
from ..decode import Grammar
from ..errors import ChildFailed
from .responses import ApiError

SECONDS = 5.0  # to compile a grammar
KNOWN = 256  # grammars that are not tried again


class GrammarCheck:
    """Tries grammars, one at a time; the process starts with the first."""

    def __init__(self) -> None:
        self._child, self._lock = Child(program=Path(__file__).with_name("grammars.py")), threading.Lock()
        self._good: deque[int] = deque(maxlen=KNOWN)
        weakref.finalize(self, self._child.close)

    def check(self, grammar: Grammar) -> None:
        """Refuse a grammar that is not valid, or that takes too long to compile."""
        with extra("guided"):
            import llguidance  # noqa: F401
        if hash(grammar) in self._good:
            return
        try:
            with self._lock:
                self._child.call("check", SECONDS, source=grammar.source)
        except ChildFailed as wrong:
            reason = f"the grammar is too complex: it {wrong}" if wrong.kind == "time" else str(wrong)
            raise ApiError(reason, "response_format") from None
        self._good.append(hash(grammar))

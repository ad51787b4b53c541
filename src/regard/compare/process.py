"""A child process that does one thing at a time and may die of it: asked and answered in JSON over pipes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, Self

from ..errors import ChildFailed

STARTING = 300.0  # seconds; two are enough on an idle machine, and a busy one deserves patience


class Child:
    """A fresh Python that calls functions by their address, "package.module:function", with plain values both ways.

        with Child(threads=1, memory=2048) as child:
            child.ask("statistics:mean", 1.0, data=[1, 2])  # → 1.5

    Whatever goes wrong is a `ChildFailed` with a `kind`: refused, memory, failed (the child lives on), died, time (it is gone; the
    next question starts another). It sees the modules that this process sees. `memory` is in MiB, beyond what it takes to start.
    """

    def __init__(self, threads: int = 1, memory: float | None = None, env: Mapping[str, str] | None = None):
        self.threads, self.memory = threads, memory
        one = str(threads)
        self.env = {**os.environ, "OMP_NUM_THREADS": one, "MKL_NUM_THREADS": one, **(env or {})}
        self.env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))  # "" is the current folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Begin to start, without waiting for it: several may start at once."""
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child; a pipe that nobody reads would block it
        self._answers: queue.Queue[str | None] = queue.Queue()
        # -P: a file in the current folder does not hide a module
        command = [sys.executable, "-P", "-m", "regard.compare.child", str(self.threads), str(self.memory or 0)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=self.env, text=True, encoding="utf-8"
            )
        except OSError as error:
            self._errors.close()
            raise ChildFailed("died", f"no process could be started: {error}") from error
        self._reader = threading.Thread(target=_read, args=(self._process.stdout, self._answers), daemon=True)
        self._reader.start()
        self._ready = False
        return self

    def wait(self) -> None:
        """Until it is ready, started now if it was not."""
        if self._process is None:
            self.start()
        if not self._ready:
            self._answer(STARTING)
            self._ready = True

    def ask(self, call: str, limit: float, **given: Any) -> Any:
        """What the function gives, within `limit` seconds."""
        self.wait()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died in between; no answer will come, and the reason is known then
            print(json.dumps({"call": call, "given": given}), file=self._process.stdin, flush=True)
        answer = self._answer(limit)
        if "failed" in answer:
            raise ChildFailed(answer["failed"], answer["says"])
        return answer["gave"]

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        self._reader.join()
        for stream in (process.stdin, process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(OSError):  # what was not yet written has no reader any more
                stream.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _answer(self, limit: float) -> dict[str, Any]:
        assert self._process is not None
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            self.close()
            raise ChildFailed("time", f"took longer than the {limit:.3g} s it is allowed") from None
        if line is None:
            said = self._last_words(self._process.wait())
            self.close()
            raise ChildFailed("died", said)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self, code: int) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how = f"the process was ended by {name}" + (" (by the system, perhaps for want of memory)" if name == "SIGKILL" else "")
        else:
            how = f"the process ended with code {code}"
        return f"{how}: {lines[-1]}" if lines else how


def _read(stream: Any, answers: queue.Queue[str | None]) -> None:
    for line in stream:
        answers.put(line)
    answers.put(None)

"""A child process that makes one call at a time and may die of it: it answers each line of JSON with another.

    {"call": "package.module:function", "arguments": {…}}   →   {"result": …}   or   {"error": kind, "message": reason}

Not `multiprocessing`: its spawned processes import the caller's `__main__` again (a script or notebook without the usual guard would run
twice), read their environment variables from the parent's own, which PyTorch must see before it is imported, and leave their standard error
on the terminal, where here its last line becomes the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch

from ..errors import ChildFailed, RegardError
from .measure import limit_memory

START_TIMEOUT = 300.0  # seconds; two are enough on an idle machine


class Child:
    """A fresh Python process that calls functions by their address, "package.module:function", with JSON values both ways.

        with Child(threads=1, memory=2048) as child:
            child.call("statistics:mean", timeout=1.0, data=[1, 2])  # → 1.5

    Every failure is a `ChildFailed` with a `kind`: refused (a RegardError: not supported), memory (over the limit), failed (any other
    exception), after which the child lives on; died, time: it is gone, and the next call starts another. It imports the modules that this
    process can import.

    Args:
        threads: threads of PyTorch.
        memory: limit in MiB beyond what it takes to start; None: unlimited.
        env: environment variables in addition.
        program: a Python file that answers such lines by itself.
    """

    def __init__(self, threads: int = 1, memory: float | None = None, env: Mapping[str, str] | None = None, *, program: Path | None = None):
        self.threads, self.memory, self.program = threads, memory, program
        self.env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **(env or {})}
        self.env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))  # "" is the current folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start the process without waiting until it is ready: several may start at once."""
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child; a pipe that nobody reads would block it
        self._answers: queue.Queue[str | None] = queue.Queue()
        # -P: a file in the current folder does not hide a module
        code = ["-c", f"from {__name__} import serve; serve({self.threads}, {self.memory or 0})"]
        command = [sys.executable, "-P", *(code if self.program is None else [str(self.program)])]
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
        """Wait until the process is ready; start it if it is not running."""
        if self._process is None:
            self.start()
        if not self._ready:
            self._answer(START_TIMEOUT)
            self._ready = True

    def call(self, function: str, timeout: float, **arguments: Any) -> Any:
        """The function's result; after `timeout` seconds the process is killed.

        Args:
            function: address of the function, "package.module:function".
            timeout: seconds after which the process is killed.
            **arguments: keyword arguments of the function, JSON values.
        """
        self.wait()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # the process has died: no answer will come, and `_answer` finds the reason
            print(json.dumps({"call": function, "arguments": arguments}), file=self._process.stdin, flush=True)
        answer = self._answer(timeout)
        if "error" in answer:
            raise ChildFailed(answer["error"], answer["message"])
        return answer["result"]

    def close(self) -> None:
        """Kill the process, if there is one."""
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

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self._process is not None
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise ChildFailed("time", f"took longer than the {timeout:.3g} s it is allowed") from None
        if line is None:
            reason = self._cause_of_death(self._process.wait())
            self.close()
            raise ChildFailed("died", reason)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _cause_of_death(self, code: int) -> str:
        """The signal or exit code, and the last line of standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            cause = f"the process was killed by {name}" + (" (perhaps by the system, out of memory)" if name == "SIGKILL" else "")
        else:
            cause = f"the process ended with code {code}"
        return f"{cause}: {lines[-1]}" if lines else cause


def _read(stream: Any, answers: queue.Queue[str | None]) -> None:
    for line in stream:
        answers.put(line)
    answers.put(None)


# -- the child's side --------------------------------------------------------------------------------------------------


def serve(threads: int, mib: float) -> None:
    """Answer calls until standard input is closed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a called function prints must not get between the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then kills this process
    torch.set_num_threads(threads)
    if mib:
        limit_memory(mib)
    print(json.dumps({"result": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)


def answer(call: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call the function; every exception becomes an answer."""
    try:
        return {"result": resolve(call)(**arguments)}
    except RegardError as error:
        return {"error": "refused", "message": str(error)}
    except Exception as error:
        if out_of_memory(error):
            return {"error": "memory", "message": "ran out of the memory it is allowed"}
        traceback.print_exc()
        return {"error": "failed", "message": f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]}


def out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed; PyTorch raises no MemoryError."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def resolve(address: str) -> Any:
    """The object that "package.module:Name" names."""
    module, _, name = address.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found

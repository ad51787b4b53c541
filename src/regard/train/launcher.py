"""Processes on this machine that are started, signalled and ended together; and `Signals`, how one that trains reacts to a signal.

    launcher ── listens on a port for the rendezvous, before any process starts
      ├─ rank 0          each in a session of its own: a signal to the launcher's process group (Ctrl-C) reaches the launcher alone,
      └─ rank 1          which passes it on once, and every process finishes its step and saves

A process that fails ends the others after `GRACE` seconds at most; when the launcher itself is killed, the system sends them SIGTERM.
torchrun's launcher is not used: it gives a failure and a request to save the same time limit, so that a process which waits for a dead
one is kept for as long as a large model may take to be saved.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from ..errors import BadConfig

GRACE = 15.0  # seconds in which the others may end by themselves after one has failed
SAVE_GRACE = 600.0  # seconds after one has ended as asked: another may still write the last checkpoint
POLL = 0.05  # seconds
STOPS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name))  # ask to save and stop
STOPPED = {128 + number for number in STOPS}  # exit codes of a process that was asked to stop and has saved
LAUNCHER = "REGARD_LAUNCHER_PID"
REPEAT = 2.0  # seconds; under torchrun one Ctrl-C arrives twice, from the terminal and from its launcher


def launch(processes: int, argv: Sequence[str], threads: int | None = None) -> int:
    """Run `python *argv` in `processes` processes on this machine; the exit code of the first that fails, or 0.

    SIGINT, SIGTERM and SIGHUP are passed on, and the processes may finish their step and save; a second signal ends them at once.
    A process killed by a signal counts as 128 + its number, as in a shell.

    Args:
        processes: number of processes.
        argv: arguments of Python: a file, or -m and a module, then its own.
        threads: threads per process; None: OMP_NUM_THREADS, or an equal share of the cores.
    """
    if processes < 1:
        raise BadConfig(f"{processes} processes: expected at least 1")
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 does not listen on that port itself
        "OMP_NUM_THREADS": str(threads or os.environ.get("OMP_NUM_THREADS") or max(1, _cores() // processes)),
        LAUNCHER: str(os.getpid()),
    }
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host name that cannot be resolved would stop gloo
    children: list[subprocess.Popen[bytes]] = []
    with _signals_noted() as noted:
        try:
            for rank in range(processes):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(subprocess.Popen([sys.executable, *argv], env=environment | place, start_new_session=True))
            return _wait(children, noted)
        finally:
            for child in children:
                child.kill()
                child.wait()


def _wait(children: Sequence[subprocess.Popen[bytes]], noted: list[int]) -> int:
    """Until all have ended, or the time after a failure is over: the exit code of the first failure, or 0."""
    first, deadline = 0, float("inf")
    while time.monotonic() < deadline:
        while noted:
            number = noted.pop(0)
            for child in children:
                child.send_signal(number)
        codes = [child.poll() for child in children]
        if not first and any(codes):
            failed = next(code for code in codes if code)
            first = 128 - failed if failed < 0 else failed
            deadline = time.monotonic() + (SAVE_GRACE if first in STOPPED else GRACE)
        if None not in codes:
            break
        time.sleep(POLL)
    return first


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Signals that ask to stop, in the order of their arrival. They are passed on later: one may come before all processes have started."""
    noted: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: noted.append(number)) for number in _heeded()}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_with_launcher() -> None:
    """Ask the system for SIGTERM when the parent process ends, so that no process goes on without its launcher. Linux only."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if LAUNCHER in os.environ and os.getppid() != int(os.environ[LAUNCHER]):  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _heeded() -> list[signal.Signals]:
    """Signals that ask to stop; not those that this process was told to ignore, as SIGHUP by nohup."""
    return [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]


def _leave_terminal() -> None:
    """Write nowhere instead of to a terminal that is gone, or into a pipe, whose reader was hung up on too: an error would stop the saving."""
    with open(os.devnull, "wb") as nowhere:
        for descriptor in (1, 2):
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor)):
                os.dup2(nowhere.fileno(), descriptor)


class Signals:
    """Inside `with`, the first Ctrl-C, SIGTERM or SIGHUP (the terminal is closed, ssh lost) is only recorded, as `asked`: the loop finishes
    its step and saves. A second one, after `REPEAT` seconds, ends the process at once.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._asked_at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers in the main thread only
            for number in _heeded():
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name == "SIGHUP":
            _leave_terminal()
        if self.asked is None:
            self.asked, self._asked_at = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._asked_at > REPEAT:
            os._exit(128 + number)

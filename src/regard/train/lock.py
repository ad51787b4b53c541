"""A run directory is locked while it is in use: RUN/lock is held by the process that writes, and says which one that is.

The lock is the system's (flock), so a killed process leaves none behind, only the file, which the next one takes over. Of several processes
that train together rank 0 holds it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import BadFile, RunInUse
from ..files import cannot, make_folder, parse_json, read, remove_drafts
from ..processes import first_process

fcntl: Any
try:
    fcntl = import_module("fcntl")
except ImportError:  # not a POSIX system: runs are not locked
    fcntl = None

LOCK = "lock"
PATIENCE = 1.0  # seconds: `holder` asks by taking the lock for a moment
_held: dict[Path, tuple[int, int]] = {}  # folder → thread, depth: `tasks.train` holds what `fit` asks for


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run; RunInUse names the process that has it. Nothing in processes other than the first."""
    if fcntl is None or not first_process():
        yield
        return
    folder, me = folder.resolve(), threading.get_ident()
    thread, depth = _held.get(folder, (me, 0))
    descriptor = None if depth and thread == me else _take(folder)
    _held[folder] = me, depth + 1
    if descriptor is not None:
        remove_drafts(folder)
    try:
        yield
    finally:
        if descriptor is None:
            _held[folder] = me, depth
        else:
            del _held[folder]
            _release(folder / LOCK, descriptor)


def holder(folder: Path) -> str | None:
    """The process that holds the lock of a run, in words; None if it is free."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return _words(folder / LOCK)
    finally:
        os.close(descriptor)


def _take(folder: Path) -> int:
    path, deadline = folder / LOCK, time.monotonic() + PATIENCE
    while True:
        try:
            make_folder(folder)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise cannot(path, error) from error
        try:
            _flock(descriptor)
            if _same(descriptor, path):  # else its holder has removed it meanwhile
                about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(about).encode())
                return descriptor
            os.close(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise RunInUse(f"{folder} is in use by {_words(path)}; wait until that has finished, or choose another folder") from error
            time.sleep(0.05)
        except OSError as error:
            os.close(descriptor)
            raise cannot(path, error) from error


def _flock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # a file system without locks: two processes are not noticed
            raise


def _release(path: Path, descriptor: int) -> None:
    try:
        if _same(descriptor, path):
            os.unlink(path)
    except OSError:  # the file alone hinders nobody
        pass
    finally:
        os.close(descriptor)


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _words(path: Path) -> str:
    try:
        about = parse_json(read(path, 1 << 12), path)
        return f"process {about['pid']} on {about['host']} since {about['since']}"
    except (BadFile, KeyError, TypeError):
        return "another process"

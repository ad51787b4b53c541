"""How many connections are open, and which one gives way when there are too many.

A client that has sent a complete request is answered. All others are waiting: idle between two requests, or with headers or a body still
under way. When a limit is reached, the connection that has waited longest is closed in favour of the new one; if one address has reached
its share, one of its own. A client that sends its request at once is therefore never shut out by clients that do not, however many they are.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

MAX_CONNECTIONS = 4096  # each takes about 20 KB, and at most 100 KB while its headers and body arrive
RESERVE = 64  # file descriptors for everything else: files, threads' pipes, libraries
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
log = logging.getLogger("regard.serve")


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts of connections and requests, in seconds."""

    headers: float = 10.0  # for the next request to begin, and for its headers to arrive
    body: float = 20.0  # for a body to arrive
    write: float = 20.0  # that a client may not read what was sent
    request: float = 600.0  # for a response to be complete
    shutdown: int = 60  # for running completions to end


GRACE = 0.5  # seconds in which a good client sends its request, even to a busy machine


class Connection(Protocol):
    """What the limits need to know about a connection."""

    address: str

    @property
    def waiting_since(self) -> float | None:
        """Since when it has owed a complete request; None while one is being answered."""

    def abort(self) -> None: ...


class Connections:
    """The open connections, at most `total` of them and at most `share` of one address."""

    def __init__(self, total: int, share: int | None = None):
        self.total, self.share = total, share or max(1, total // 2)
        self.closed = 0  # how many had to give way
        self._of: dict[str, set[Connection]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, new: Connection) -> bool:
        """Whether there is a place for it; another connection may have been closed for that."""
        same = self._of.get(new.address, set())
        if len(same) >= self.share:
            if not self._close_one(same):
                return False
        elif self._count >= self.total and not self._close_one(max(self._of.values(), key=_slowness)):
            return False
        self._of.setdefault(new.address, set()).add(new)
        self._count += 1
        return True

    def discard(self, one: Connection) -> None:
        same = self._of.get(one.address, set())
        if one in same:
            same.remove(one)
            self._count -= 1
            if not same:
                del self._of[one.address]

    def _close_one(self, among: Iterable[Connection]) -> bool:
        waiting = [(one.waiting_since, id(one), one) for one in among if one.waiting_since is not None]
        if not waiting:
            return False
        oldest = min(waiting)[2]
        self.discard(oldest)
        self.closed += 1
        oldest.abort()
        return True


def _slowness(connections: Iterable[Connection]) -> tuple[int, int]:
    """How many owe a request for longer than a good client needs to send one, and how many owe one at all."""
    waiting = [since for one in connections if (since := one.waiting_since) is not None]
    long_ago = time.monotonic() - GRACE
    return sum(since < long_ago for since in waiting), len(waiting)


class Listener(socket.socket):
    """A listening socket. When the process is out of file descriptors, asyncio stops accepting for a second; this tells it only once."""

    _pause_until = 0.0

    def accept(self) -> tuple[socket.socket, object]:
        if time.monotonic() < self._pause_until:
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                self._pause_until = time.monotonic() + 0.5
            raise


@dataclass(frozen=True)
class Capacity:
    """Connections that the process can hold, and the length of the kernel's queue of those not yet accepted."""

    connections: int
    backlog: int


def find_capacity() -> Capacity:
    """By the limit of file descriptors, which is raised as far as the process may, less those in use and a reserve.

    asyncio accepts a whole backlog before it looks at any of the new connections, so that many descriptors are kept free, too; and it is an
    eighth of the connections, or a burst of new ones could close another before its request is read (4 of 2,000 when it was half).
    """
    try:
        import resource
    except ImportError:  # Windows, where sockets are not file descriptors
        return Capacity(MAX_CONNECTIONS, 512)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + 512 + 4 * RESERVE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):
            pass  # as many as there are
    free = (wanted if soft == resource.RLIM_INFINITY else soft) - _descriptors_in_use() - RESERVE
    backlog = max(1, min(512, free // 9))
    return Capacity(max(1, min(MAX_CONNECTIONS, free - backlog)), backlog)


def _descriptors_in_use() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder))
        except OSError:
            continue
    return RESERVE

"""Guards against slow and hostile clients: limits of time, memory and number for connections, headers and bodies.

A client that has sent a complete request is answered. All others are waiting: idle between two requests, or with headers or a body still
under way. When a limit is reached, the connection that has waited longest is closed in favour of the new one; if one address has reached
its share, one of its own. A client that sends its request at once is therefore never shut out by clients that do not, however many they are.

| guard | limits |
|---|---|
| `Connections` | open connections, in all and per address; the slowest gives way |
| `GuardedProtocol` | time for headers, for a response to be read, for a whole request |
| `check_headers` | number and size of headers; one length of the body |
| `Bodies` | size and time of a body, memory of all bodies under way |
| `find_capacity`, `Listener`, `GuardedServer` | file descriptors |

A reverse proxy has some of these, too; here they hold without one.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import h11
import uvicorn
from starlette.requests import Request as HttpRequest
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from .responses import ApiError

MAX_CONNECTIONS = 4096  # each takes about 20 KB, and at most 100 KB while its headers and body arrive
RESERVE = 64  # file descriptors for everything else: files, threads' pipes, libraries
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SENDING = 0.5  # seconds in which a good client sends its request, even to a busy machine
TELLING = 30.0  # seconds after the time limit of a request, in which its client can be told
MAX_HEADERS, MAX_HEADERS_BYTES = 64, 16_384
MAX_BODY = 2**20  # bytes of JSON
MAX_BODIES = 64 * 2**20  # bytes of all bodies under way
JSON, BYTES = "application/json", "application/octet-stream"  # neither can be sent across origins without asking first
log = logging.getLogger("regard.serve")


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts of connections and requests, in seconds."""

    headers: float = 10.0  # for the next request to begin, and for its headers to arrive
    body: float = 20.0  # for a body to arrive
    write: float = 20.0  # that a client may not read what was sent
    request: float = 600.0  # for a response to be complete
    shutdown: int = 60  # for running completions to end


# -- connections --------------------------------------------------------------------------------------------------------


class Connection(Protocol):
    """Facts about a connection that the limits need."""

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
        """Add a connection and return whether there is a place for it; another connection may have been closed for that."""
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
    """Count the connections that owe a request for longer than a good client needs to send one, and those that owe one at all."""
    waiting = [since for one in connections if (since := one.waiting_since) is not None]
    long_ago = time.monotonic() - SENDING
    return sum(since < long_ago for since in waiting), len(waiting)


class GuardedProtocol(H11Protocol):
    """HTTP with timeouts: requests must begin and headers arrive in time, responses must be read, and all of it must end in time."""

    def __init__(self, *args: Any, timeouts: Timeouts, open_connections: Connections, **options: Any):
        super().__init__(*args, **options)
        self.address = ""
        self._timeouts, self._open = timeouts, open_connections
        self._began = time.monotonic()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def waiting_since(self) -> float | None:
        """Since when the client has owed a complete request."""
        cycle = self.cycle
        return self._began if cycle is None or cycle.response_complete or cycle.more_body else None

    def abort(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self._open.add(self):
            self._start("headers", self._timeouts.headers)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        for name in list(self._timers):
            self._stop(name)
        super().resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except (UnicodeDecodeError, h11.ProtocolError):  # a path that is not ASCII, an error after an error
            self.abort()
            return
        self._on_request()

    def on_response_complete(self) -> None:
        self._began = time.monotonic()
        self._stop("request")
        self._start("headers", self._timeouts.headers)
        super().on_response_complete()
        self._on_request()  # a pipelined one

    def pause_writing(self) -> None:
        super().pause_writing()
        if "write" not in self._timers:
            self._start("write", self._timeouts.write)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("write")

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(ApiError("this is not HTTP", code="bad_request").body()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        try:
            for event in (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # a response has been started already
        self.transport.close()

    def _on_request(self) -> None:
        """While a request is being answered, its own timer runs instead of the one for headers."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("headers")
            self._unset_keepalive_if_required()
            if "request" not in self._timers:
                self._start("request", self._timeouts.request + TELLING)

    def _start(self, name: str, seconds: float) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, self.abort)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


# -- headers and bodies -------------------------------------------------------------------------------------------------


def check_headers(scope: Scope) -> None:
    """Refuse too many or too large headers (h11 limits only those that arrive in pieces), and requests whose end is ambiguous."""
    headers = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers) + len(scope["raw_path"]) + len(scope["query_string"])
    if len(headers) > MAX_HEADERS or size > MAX_HEADERS_BYTES:
        raise ApiError(
            f"{len(headers)} headers of {size} bytes; expected at most {MAX_HEADERS} headers of {MAX_HEADERS_BYTES} bytes",
            status=431,
            code="headers_too_large",
            headers={"Connection": "close"},
        )
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        raise ApiError(
            "both Content-Length and Transfer-Encoding, so where the request ends is ambiguous; send one of them",
            code="ambiguous_length",
            headers={"Connection": "close"},
        )


@dataclass(eq=False)
class _Arriving:
    timeout: asyncio.Timeout
    size: int = 0


class Bodies:
    """Reads bodies. When all of them together become too large, the one that has been under way longest is given up."""

    def __init__(self, seconds: float, max_bytes: int = MAX_BODIES):
        self.seconds, self.max_bytes = seconds, max_bytes
        self._arriving: dict[_Arriving, None] = {}  # the oldest first
        self._bytes = 0

    async def read(self, request: HttpRequest, kind: str = JSON, most: int = MAX_BODY) -> bytes:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
            what = "JSON" if kind == JSON else "the bytes of a file"
            raise ApiError(f"the body must be {what}, with Content-Type: {kind}", status=415, code="unsupported_media_type")
        too_large = ApiError(f"the body is larger than {most} bytes", status=413, code="too_large")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise too_large
        raw, one = bytearray(), _Arriving(asyncio.timeout(self.seconds))
        try:
            async with one.timeout:
                self._arriving[one] = None
                async for piece in request.stream():
                    raw += piece
                    self._add(one, len(piece))
                    if len(raw) > most:
                        raise too_large
        except TimeoutError:
            raise ApiError(
                f"the body did not arrive within {self.seconds:g} seconds, or before newer ones needed its memory",
                status=408,
                code="timeout",
            ) from None
        finally:
            self._remove(one)
        return bytes(raw)

    def _add(self, one: _Arriving, size: int) -> None:
        if one not in self._arriving:
            return  # it was given up
        one.size += size
        self._bytes += size
        while self._bytes > self.max_bytes and len(self._arriving) > 1:
            oldest = next(iter(self._arriving))
            self._remove(oldest)
            oldest.timeout.reschedule(0.0)

    def _remove(self, one: _Arriving) -> None:
        if one in self._arriving:
            del self._arriving[one]
            self._bytes -= one.size


# -- file descriptors ---------------------------------------------------------------------------------------------------


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


class GuardedServer(uvicorn.Server):
    """A server that reports a lack of file descriptors in one line; asyncio tries again after a second."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_report)
        await super().startup(sockets)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), OSError) and "accept" in str(context.get("message")):
        log.warning("no new connections for a second: %s", context["exception"])
    else:
        loop.default_exception_handler(context)


@dataclass(frozen=True)
class Capacity:
    """Connections that the process can hold, and the length of the kernel's queue of those not yet accepted."""

    connections: int
    backlog: int


def find_capacity() -> Capacity:
    """Find the capacity by the limit of file descriptors, which is raised as far as the process may, less those in use and a reserve.

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

"""The HTTP server: its address, the API key that a public address needs, limits for slow clients, and shutdown.

It is uvicorn with h11, in this process, because the model is in this process: granian and hypercorn start workers of their own, and of the
three none limits connections per address, gives new clients precedence over silent ones, or limits the time for headers, a body and a whole
request together. h11 parses, with its limit for headers that never end; uvicorn's settings bound the kernel's queue, idle connections and
shutdown; what neither can do is `GuardedProtocol` (timers) and `Connections` (who gives way). What a request may contain is checked in
`access`, and how much may arrive in `bodies`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import NotSupported
from .connections import Capacity, Connections, Listener, Timeouts, find_capacity
from .responses import ApiError

GRACE = 30.0  # seconds after the time limit of a request, in which its client can be told
MAX_HEADERS_SIZE = 16_384  # bytes
log = logging.getLogger("regard.serve")


class Application(Protocol):
    """What is served."""

    timeouts: Timeouts

    def app(self, key: str | None = None, *, cors: Sequence[str] = (), access_log: bool = False) -> ASGIApp: ...


def build_server(
    service: Application, key: str | None, *, cors: Sequence[str] = (), access_log: bool = False, capacity: Capacity | None = None
) -> uvicorn.Server:
    """The server of a service, not yet running."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    capacity, timeouts = capacity or find_capacity(), service.timeouts
    protocol: Any = partial(GuardedProtocol, timeouts=timeouts, open_connections=Connections(capacity.connections))
    return GuardedServer(
        uvicorn.Config(
            service.app(key, cors=cors, access_log=access_log), http=protocol, ws="none", lifespan="on", log_config=None, access_log=False,
            server_header=False, h11_max_incomplete_event_size=MAX_HEADERS_SIZE, timeout_graceful_shutdown=timeouts.shutdown,
            timeout_keep_alive=max(1, int(timeouts.headers)), proxy_headers=False, backlog=capacity.backlog,
        )
    )  # fmt: skip


def check_address(host: str, key: str | None) -> None:
    """An address that other machines can reach needs an API key."""
    if key is not None and (len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key):
        raise NotSupported(
            "the API key must have at least 8 printable ASCII characters and no spaces; `openssl rand -hex 24` makes a good one"
        )
    if key is None and not _is_local(host):
        raise NotSupported(
            f"{host or 'an empty host'} can be reached from other machines, and without an API key anyone there could use this model; set "
            "REGARD_KEY in the environment or --key, or use --host 127.0.0.1"
        )


def _is_local(host: str) -> bool:
    if not host:
        return False  # all addresses
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None)
    except OSError as error:
        raise NotSupported(f"{host} is not an address of this machine: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address[4][0])).is_loopback for address in found)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; uvicorn makes it listen, with its backlog."""
    if not 0 <= port < 65536:
        raise NotSupported(f"port {port}; expected 0 to 65535")
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise NotSupported(f"cannot listen at {host}:{port}: {error.strerror}; choose another --port or --host") from error
    return Listener(bound.family, bound.type, bound.proto, fileno=bound.detach())


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
                self._start("request", self._timeouts.request + GRACE)

    def _start(self, name: str, seconds: float) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, self.abort)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

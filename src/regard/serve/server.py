"""The HTTP server: its address, the API key that a public address needs, timeouts for slow clients, and shutdown."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import NotSupported
from .responses import ApiError

MAX_CONNECTIONS = 1000


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts of connections, in seconds."""

    headers: float = 10.0  # for the next request to begin, and for its headers to arrive
    write: float = 20.0  # that a client may not read what was sent
    shutdown: int = 60  # for running completions to end


class Application(Protocol):
    """What is served."""

    def app(self, key: str | None = None) -> ASGIApp: ...


def build_server(service: Application, key: str | None, timeouts: Timeouts = Timeouts()) -> uvicorn.Server:  # noqa: B008  frozen
    """The server of a service, not yet running."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    protocol: Any = partial(TimeoutProtocol, timeouts=timeouts)
    return uvicorn.Server(
        uvicorn.Config(
            service.app(key), http=protocol, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False,
            h11_max_incomplete_event_size=16_384, timeout_graceful_shutdown=timeouts.shutdown, proxy_headers=False,
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
    """A listening socket."""
    if not 0 <= port < 65536:
        raise NotSupported(f"port {port}; expected 0 to 65535")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256)
    except OSError as error:
        raise NotSupported(f"cannot listen at {host}:{port}: {error.strerror}; choose another --port or --host") from error


class TimeoutProtocol(H11Protocol):
    """HTTP with timeouts: requests must begin and headers arrive in time, and responses must be read."""

    def __init__(self, *args: Any, timeouts: Timeouts, **options: Any):
        super().__init__(*args, **options)
        self._timeouts = timeouts
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except (UnicodeDecodeError, h11.ProtocolError):  # a path that is not ASCII, an error after an error
            self.transport.abort()
            return
        self._stop_timer_while_responding()

    def on_response_complete(self) -> None:
        self._start_timer()
        super().on_response_complete()
        self._stop_timer_while_responding()  # a pipelined request has begun

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self._writing or self.loop.call_later(self._timeouts.write, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(ApiError("this is not HTTP", code="bad_request").body()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        try:
            for event in (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # a response has been started already
        self.transport.close()

    def _stop_timer_while_responding(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
            self._unset_keepalive_if_required()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._reading = self.loop.call_later(self._timeouts.headers, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

"""The HTTP server: its address, the API key that a public address needs, limits for slow clients, and shutdown.

It is uvicorn with h11, in this process, because the model is in this process: granian and hypercorn start workers of their own, and of the
three none limits connections per address, gives new clients precedence over silent ones, or limits the time for headers, a body and a whole
request together. h11 parses, with its limit for headers that never end; uvicorn's settings bound the kernel's queue, idle connections and
shutdown; what neither can do is in `guards`. Who may ask what is checked in `access`.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from ..errors import NotSupported
from .guards import MAX_HEADERS_BYTES, Capacity, Connections, GuardedProtocol, GuardedServer, Listener, Timeouts, find_capacity


class Application(Protocol):
    """Application that is served."""

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
            server_header=False, h11_max_incomplete_event_size=MAX_HEADERS_BYTES, timeout_graceful_shutdown=timeouts.shutdown,
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
    """A bound socket; uvicorn makes it listen, with its backlog.

    asyncio sets TCP_NODELAY on a connection only if its protocol number is TCP's, and `create_server` leaves 0: each response on a
    connection that is kept alive would then wait 40 ms for the client's delayed acknowledgement.
    """
    if not 0 <= port < 65536:
        raise NotSupported(f"port {port}; expected 0 to 65535")
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise NotSupported(f"cannot listen at {host}:{port}: {error.strerror}; choose another --port or --host") from error
    return Listener(bound.family, bound.type, socket.IPPROTO_TCP, fileno=bound.detach())

"""Listening: the address, the key that an open one needs, clients that are too slow, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import signal
import socket
from collections.abc import Callable, Mapping

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..data import Tokenizer
from ..decode import lightened
from ..decode.complete import engine_for
from ..decode.weights import Weights
from ..errors import NotSupported
from ..models import LanguageModel
from .app import Service
from .errors import Refused

HEADERS = 10.0  # seconds for the next request to begin, and for its headers to arrive
STUCK = 20.0  # seconds that a client may not read what was sent
CONNECTIONS = 1000
DRAINING = 60  # seconds for answers to end when the server is told to


def listen(
    loader: Callable[[], tuple[LanguageModel, Tokenizer]],
    name: str,
    host: str,
    port: int,
    key: str | None,
    weights: Weights,
    bounds: Mapping[str, int],
) -> None:
    """Serve until told to stop."""
    check_address(host, key)
    model, tokenizer = loader()
    service = Service(engine_for(lightened(model, weights), tokenizer, **bounds), tokenizer, name)
    bound = _bound(host, port)
    where = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    print(
        f"{name} at {where}/v1/completions; {service.limits.length} tokens, {'with a key' if key else 'no key, this machine only'}",
        flush=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn has seen it by then, and let answers end: the process ends as asked
    with contextlib.suppress(KeyboardInterrupt):
        server_of(service, key).run([bound])
    print("stopped", flush=True)


def server_of(service: Service, key: str | None) -> uvicorn.Server:
    """The server of a service, not yet running."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return uvicorn.Server(
        uvicorn.Config(
            service.app(key), http=Patient, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False,
            h11_max_incomplete_event_size=16_384, timeout_graceful_shutdown=DRAINING, proxy_headers=False,
        )
    )  # fmt: skip


def check_address(host: str, key: str | None) -> None:
    """An address that other machines reach needs a key."""
    if key is not None and (len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key):
        raise NotSupported("a key must have at least 8 letters, digits or signs, and no spaces; `openssl rand -hex 24` makes a good one")
    if key is None and not _only_here(host):
        raise NotSupported(
            f"{host or 'an empty host'} is reached from other machines, and without a key everyone there could use this model; give one as "
            "REGARD_KEY in the environment or with --key, or take --host 127.0.0.1"
        )


def _only_here(host: str) -> bool:
    if not host:
        return False  # all addresses
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None)
    except OSError as error:
        raise NotSupported(f"{host} is no address of this machine: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address[4][0])).is_loopback for address in found)


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise NotSupported(f"port {port}; expected 0 to 65535")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256)
    except OSError as error:
        raise NotSupported(f"cannot listen at {host}:{port}: {error.strerror}; choose another --port or --host") from error


class Patient(H11Protocol):
    """HTTP with an end to patience: requests must begin and headers arrive in time, and what is sent must be read."""

    _timer: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except (UnicodeDecodeError, h11.ProtocolError):  # a path that is not ASCII, an error behind an error
            self.transport.abort()
            return
        self._answering()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()
        self._answering()  # a request that was sent behind the last one has begun

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self._writing or self.loop.call_later(STUCK, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(Refused("this is not HTTP", code="bad_request").body()).encode()
        about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        try:
            for event in (h11.Response(status_code=400, headers=about, reason=b"Bad Request"), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer is on its way already
        self.transport.close()

    def _answering(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unset()
            self._unset_keepalive_if_required()

    def _wait(self) -> None:
        self._unset()
        self._timer = self.loop.call_later(HEADERS, self.transport.abort)

    def _unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""Access before any route: Host, Origin, the API key; and the headers of every response.

Without an API key the server answers this machine only, so a web page opened here must not be able to use it: neither by a name of its own
that points to this machine (DNS rebinding: the Host header is checked), nor across origins (the Origin header is checked). Pages of an origin
given with `cors` may.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from h11 import LocalProtocolError
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import NotSupported
from .guards import check_headers
from .responses import ApiError
from .worker import Metrics

PUBLIC = ("/", "/lineage", "/health", "/docs", "/openapi.json")  # need no API key
CSP = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
ALLOWED_METHODS, ALLOWED_HEADERS = "GET, POST, OPTIONS", "Authorization, Content-Type"
log = logging.getLogger("regard.serve")


class Access(NamedTuple):
    """Users of the server: clients with this key, or this machine's if there is none; and pages of these origins."""

    key: str | None = None
    cors: Sequence[str] = ()
    log: bool = False


def check_origins(origins: Sequence[str], key: str | None) -> None:
    """Origins are written as browsers send them: https://example.org, without a path."""
    for origin in origins:
        parts = urlsplit(origin)
        if origin == "*":
            if key is None:
                raise NotSupported(
                    "--cors '*' without an API key would let every web page use this model; name the origin, or set REGARD_KEY"
                )
        elif parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
            raise NotSupported(f"--cors {origin}: expected an origin, as in https://example.org, without a path")


class AccessMiddleware:
    """Checks requests, counts and logs them, and turns errors into responses."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, routes: set[str]):
        self.app, self.access, self.metrics, self.routes = app, access, metrics, routes
        self._key = None if access.key is None else f"Bearer {access.key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, start = 0, time.perf_counter()
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(MutableHeaders(scope=message), origin)
            await send(message)

        async def respond() -> None:
            check_headers(scope)
            self._check_origin(origin, headers)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers and self._may_cross(origin):
                return await _preflight()(scope, receive, send_and_note)
            self._check_client(scope, headers)
            await self.app(scope, receive, send_and_note)

        try:
            try:
                await respond()
            except ApiError as error:
                await error.response()(scope, receive, send_and_note)
        except (ClientDisconnect, LocalProtocolError):  # the latter: the connection of a slow client was closed meanwhile
            status = 499  # nobody reads a response
        except Exception:
            log.exception("a request failed")  # the client got an error response, if that was still possible
        finally:
            path = scope["path"]
            self.metrics.requests.labels(path if path in self.routes else "other", str(status or 499)).inc()
            if self.access.log:
                self._log(scope, status or 499, time.perf_counter() - start)

    def _may_cross(self, origin: str) -> bool:
        return bool(origin) and (origin in self.access.cors or "*" in self.access.cors)

    def _check_origin(self, origin: str, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host and not self._may_cross(origin):
            raise ApiError(
                "requests from pages of another origin are not answered; start the server with --cors ORIGIN to allow one",
                status=403,
                code="wrong_origin",
            )

    def _check_client(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if self._key is None:
            if not _is_local(headers.get(b"host", b"").decode("latin-1")):
                raise ApiError("without an API key only requests to localhost are answered", status=403, code="wrong_host")
        elif not is_public(scope["path"]) and not hmac.compare_digest(headers.get(b"authorization", b""), self._key):
            raise ApiError(
                "missing or wrong API key; expected the header Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _add_headers(self, headers: MutableHeaders, origin: str) -> None:
        headers["X-Content-Type-Options"] = "nosniff"
        if headers.get("content-type", "").startswith("text/html"):
            headers.setdefault("Content-Security-Policy", CSP)
            headers.setdefault("Referrer-Policy", "no-referrer")
        if self.access.cors:
            headers.add_vary_header("Origin")
            if self._may_cross(origin):
                headers["Access-Control-Allow-Origin"] = origin

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        client = scope["client"][0] if scope["client"] else "-"
        path = quote(scope["path"])  # a path may contain line breaks
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        print(f"{stamp} {client} {scope['method']} {path} {status} {seconds:.3f} s", file=sys.stderr, flush=True)


def is_public(path: str) -> bool:
    """Return whether it needs no API key: the page holds nothing secret."""
    return path in PUBLIC or path.startswith("/static/")


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": ALLOWED_METHODS,
            "Access-Control-Allow-Headers": ALLOWED_HEADERS,
            "Access-Control-Max-Age": "600",
        },
    )


def _is_local(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False

"""Request bodies on their way in: JSON, or files of a page, limited in size, time and memory. Until a body is complete it is not work, and nothing waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest

from .responses import ApiError

MAX_BODY = 2**20  # bytes of JSON
JSON, BYTES = "application/json", "application/octet-stream"  # neither can be sent across origins without asking first
MAX_BODIES = 64 * 2**20  # bytes of all bodies under way


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

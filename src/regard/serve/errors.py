"""What goes wrong, as OpenAI's clients expect to be told: {"error": {"message", "type", "param", "code"}}, whatever it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class Refused(Exception):
    """A request that is not answered, and why."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.message, self.status, self.code, self.headers = _written(message), status, code, dict(headers or {})
        self.param = None if param is None else _written(param)

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def _written(text: str) -> str:
    """The text with what no file could hold replaced: what was sent may be half a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def busy(message: str) -> Refused:
    return Refused(message, status=429, code="rate_limit_exceeded", headers={"Retry-After": "1"})


BROKEN = Refused("the model failed; the server has written down how, and goes on", status=500, code="internal_error")

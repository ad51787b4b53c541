"""Errors in the form that OpenAI's clients expect: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class ApiError(Exception):
    """An error response: the message, the offending parameter, the HTTP status and OpenAI's code."""

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
        self.message, self.param = message, param
        self.status, self.code = status, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def queue_full(message: str) -> ApiError:
    return ApiError(message, status=429, code="rate_limit_exceeded", headers={"Retry-After": "1"})


MODEL_FAILED = ApiError("the model failed; see the server's log", status=500, code="internal_error")

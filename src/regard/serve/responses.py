"""Responses in the form that OpenAI's clients read: text completions, whole and as chunks, and errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from starlette.responses import JSONResponse

from ..data import Tokenizer
from ..decode import Request, TokenLogprob
from ..decode.guided import CALL, CALL_END
from ..decode.requests import BROKEN

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as text. An incomplete character is shown by its bytes, and a token without text by its name."""
    if token >= len(tokenizer):
        return str(token)  # a model's vocabulary may be larger than its tokenizer's
    text = tokenizer.decode([token])
    if BROKEN in text:
        return f"bytes:{tokenizer.strings([token])[0]}"
    return text or tokenizer.vocabulary[token]


class CompletionResponse:
    """Builds the objects of one completion response. `texts` caches tokens as text across responses."""

    def __init__(self, model: str, tokenizer: Tokenizer, texts: dict[int, str], logprobs: bool):
        self._tokenizer, self._texts, self._logprobs = tokenizer, texts, logprobs
        self._head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()), "model": model}

    def choice(self, index: int, text: str, tokens: Sequence[TokenLogprob], finish_reason: str | None, before: int) -> dict[str, Any]:
        """`before`: characters of the prompt that the text does not contain; offsets count from the beginning of the prompt."""
        logprobs = self._logprobs_object(tokens, before) if self._logprobs else None
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}

    def chunk(self, index: int, text: str, tokens: Sequence[TokenLogprob], finish_reason: str | None, before: int) -> dict[str, Any]:
        """A choice of an event: what was added."""
        return self.choice(index, text, tokens, finish_reason, before)

    def body(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "choices": choices, **more}

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = token_text(self._tokenizer, token)
        return self._texts[token]

    def _logprobs_object(self, tokens: Sequence[TokenLogprob], before: int) -> dict[str, Any]:
        def top(one: TokenLogprob) -> dict[str, float] | None:
            if one.log_prob is None:
                return None
            found: dict[str, float] = {}
            for token, log_prob in (*one.top, (one.id, one.log_prob)):  # the token itself is always included
                found.setdefault(self._text(token), log_prob)
            return found

        return {
            "tokens": [self._text(one.id) for one in tokens],
            "token_logprobs": [one.log_prob for one in tokens],
            "top_logprobs": [top(one) for one in tokens],
            "text_offset": [before + one.offset for one in tokens],
        }


CallForm = Literal["tool_calls", "stop"] | None  # finish reason of an answer that calls a tool; None: none may be called


class Called(msgspec.Struct, frozen=True):
    """The call of a tool, as the model writes it."""

    name: str
    arguments: msgspec.Raw


class ChatResponse(CompletionResponse):
    """Response to a chat: messages instead of texts, and log-probabilities as objects per token."""

    def __init__(self, model: str, tokenizer: Tokenizer, texts: dict[int, str], logprobs: bool, stream: bool, calls: CallForm = None):
        super().__init__(model, tokenizer, texts, logprobs)
        self._calls = calls
        self._held: dict[int, str] = {}  # the beginnings of choices that may become calls
        kind = "chat.completion.chunk" if stream else "chat.completion"
        self._head |= {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind}
        self._begun: set[int] = set()  # choices whose role was sent

    def choice(self, index: int, text: str, tokens: Sequence[TokenLogprob], finish_reason: str | None, before: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if (call := self._call(text)) is not None:
            message |= {"content": None, "tool_calls": [call]}
            finish_reason = self._calls
        return {"index": index, "message": message, "logprobs": self._content(tokens), "finish_reason": finish_reason}

    def chunk(self, index: int, text: str, tokens: Sequence[TokenLogprob], finish_reason: str | None, before: int) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": text}
        if self._calls is not None and (index not in self._begun or index in self._held):
            text = self._held.pop(index, "") + text
            delta["content"] = text
            if (call := self._call(text)) is not None:
                delta = {"tool_calls": [{"index": 0, **call}]}
                finish_reason = self._calls
            elif text.startswith("<") and finish_reason is None:
                self._held[index], delta = text, {}
        if index not in self._begun:
            delta = {"role": "assistant", **delta}
        self._begun.add(index)
        return {"index": index, "delta": delta, "logprobs": self._content(tokens), "finish_reason": finish_reason}

    def _call(self, text: str) -> dict[str, Any] | None:
        """The call of a tool that a whole answer is, if it is one."""
        if self._calls is None or not (text.startswith(CALL) and text.endswith(CALL_END)):
            return None
        called = msgspec.json.decode(text[len(CALL) : -len(CALL_END)], type=Called)
        function = {"name": called.name, "arguments": bytes(called.arguments).decode()}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}

    def _content(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        def one(token: int, log_prob: float | None) -> dict[str, Any]:
            text = self._text(token)
            return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}

        if not self._logprobs:
            return None
        return {"content": [{**one(t.id, t.log_prob), "top_logprobs": [one(*other) for other in t.top]} for t in tokens], "refusal": None}


def usage(requests: Sequence[Request]) -> dict[str, int]:
    """Prompt tokens, counted once per prompt, and generated tokens, including those of completions not returned."""
    read = sum(len(request.prompt) for request in requests)
    generated = sum(len(completion.ids) for request in requests for completion in request.completions)
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


class ApiError(Exception):
    """An error response, {"error": {"message", "type", "param", "code"}}: the message, the offending parameter, the HTTP status and OpenAI's code."""

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

"""The routes: validate, submit, stream. Nothing here touches the model."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import torch
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..decode import Chunk, Completion, Engine, PromptEncoder, Request
from ..decode.generation import best_completions
from ..errors import RegardError
from ..look import capture
from . import schemas
from .explorer import Explorer
from .playground import Playground
from .responses import MODEL_FAILED, ApiError, CompletionResponse, token_text, usage
from .schemas import AttentionRequest, CompletionRequest, GenerationRequest
from .worker import Job, Metrics, Worker

ATTENTION_TOKENS = 512  # maximum length of a text that attention weights are returned for
ATTENTION_WEIGHTS = 400_000  # maximum number of weights per response of /v1/attention
DONE = b"data: [DONE]\n\n"
T = TypeVar("T")
log = logging.getLogger("regard.serve")


class Service:
    """One model, its worker, and the routes to it."""

    def __init__(self, engine: Engine, encoder: PromptEncoder, name: str, body_timeout: float = 20.0):
        self.engine, self.encoder, self.tokenizer, self.name = engine, encoder, encoder.tokenizer, name
        self.token_texts: dict[int, str] = {}  # grows to the size of the vocabulary at most
        self.metrics = Metrics()
        self.worker = Worker(engine, self.metrics)
        self.metrics.prompts_open.set_function(lambda: self.worker.open)
        self.limits = schemas.Limits(
            model=name,
            vocab_size=min(engine.vocab_size, len(encoder.tokenizer)),
            context_length=min(engine.context_length, engine.options.max_context_tokens),
            max_batch=engine.options.max_batch,
            max_prompts=min(schemas.MAX_PROMPTS, engine.options.max_queue),
        )
        self.created = int(time.time())
        self.body_timeout = body_timeout  # seconds for a body to arrive
        playground = Playground.of_language_model(engine.model, encoder.tokenizer)
        self.explorer = Explorer(playground, name, self.worker.call, self._body)

    def app(self, key: str | None = None) -> ASGIApp:
        """The ASGI application; with a `key` it accepts only requests that carry it."""
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics_text),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/attention", self.attention, methods=["POST"]),
            *self.explorer.routes(),
        ]

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await self.worker.stop()

        return build_app(routes, lifespan, key, self.metrics)

    # -- routes --------------------------------------------------------------------------------------------------------

    async def health(self, request: HttpRequest) -> Response:
        if not self.worker.alive:
            raise ApiError("the engine has stopped", status=503, code="unavailable")
        return JSONResponse({"status": "ok", "model": self.name})

    async def metrics_text(self, request: HttpRequest) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: HttpRequest) -> Response:
        model = {"id": self.name, "object": "model", "created": self.created, "owned_by": "regard"}
        name = request.path_params.get("name")
        if name is None:
            return JSONResponse({"object": "list", "data": [model]})
        if name != self.name:
            raise ApiError(f"no such model; this server has {self.name!r}", "model", status=404, code="model_not_found")
        return JSONResponse(model)

    async def completions(self, request: HttpRequest) -> Response:
        with self.worker.receiving():
            params = schemas.read_completion(await self._body(request), self.limits)
            requests = await asyncio.to_thread(self._requests, params)
        job = await self.worker.submit(requests)
        response = CompletionResponse(self.name, self.tokenizer, self.token_texts, params.logprobs is not None)
        if params.stream:
            return EventStream(job, self._events(job, params, response))
        await self._finish(job, request.receive)
        used, before = usage(requests), self._prompt_characters(params)
        self.metrics.add_usage(used)

        def body() -> dict[str, Any]:
            shown = [(one, start) for request, start in zip(requests, before, strict=True) for one in best_completions(request)]
            choices = [response.choice(at, one.text, one.logprobs, one.finish_reason, start) for at, (one, start) in enumerate(shown)]
            return response.body(choices, usage=used)

        return await _json(body)

    async def attention(self, request: HttpRequest) -> Response:
        with self.worker.receiving():
            params = schemas.read_attention(await self._body(request), self.limits)
            requests = await asyncio.to_thread(self._requests, params, ATTENTION_TOKENS)
        job = await self.worker.submit(requests)
        await self._finish(job, request.receive)
        ((completion,),) = (one.completions for one in requests)
        weights = await self.worker.call(lambda: self._attention_weights(completion, params))
        used = usage(requests)
        self.metrics.add_usage(used)
        return await _json(lambda: {"object": "attention", "model": self.name, "text": completion.text, **weights, "usage": used})

    # -- their parts ---------------------------------------------------------------------------------------------------

    def _requests(self, params: GenerationRequest, max_length: int | None = None) -> list[Request]:
        """Requests for the engine; called in a thread, because tokenizing a long text takes a while."""
        options = params.options()
        try:
            requests = self.encoder.requests(params.prompts(), options)
        except RegardError as wrong:
            raise ApiError(f"prompt: {wrong}", "prompt") from None
        logprobs = sum(schemas.count_logprobs(len(request.prompt), options) for request in requests)
        if logprobs > schemas.MAX_LOGPROBS:
            raise ApiError(
                f"logprobs: {logprobs:,} log-probabilities in one response; expected at most {schemas.MAX_LOGPROBS:,}", "logprobs"
            )
        for request in requests:
            size = len(request.prompt) + (options.max_tokens or 0)
            schemas.check_length(len(request.prompt), options.max_tokens or 0, self.limits)
            if max_length is not None and size > max_length:
                raise ApiError(f"prompt and completion may have {size} tokens; expected at most {max_length} for weights", "max_tokens")
            if options.num_completions * size > self.engine.options.max_context_tokens:
                raise ApiError(
                    f"{options.num_completions} completions of {size} tokens; expected at most "
                    f"{self.engine.options.max_context_tokens} tokens in all",
                    "best_of",
                )
        return requests

    def _prompt_characters(self, params: CompletionRequest) -> list[int]:
        """Characters of each prompt, which offsets include though only an echo shows them."""
        prompts = params.prompts()
        if params.echo or params.logprobs is None:
            return [0] * len(prompts)
        return [len(prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)) for prompt in prompts]

    async def _finish(self, job: Job, receive: Receive) -> None:
        """Wait until all completions have ended. If the client disconnects they are cancelled."""
        async with _closed_at_the_end(job, receive):
            async for _ in job.chunks():
                pass
        if not job.finished:
            raise ClientDisconnect

    async def _events(self, job: Job, params: CompletionRequest, response: CompletionResponse) -> AsyncIterator[bytes]:
        more, before = {"usage": None} if params.include_usage else {}, self._prompt_characters(params)

        def event(chunk: Chunk) -> bytes:
            request = chunk.completion.request
            index = request.index * request.options.n + chunk.completion.index
            choice = response.choice(index, chunk.text, chunk.logprobs, chunk.finish_reason, before[request.index])
            return _event(response.body([choice], **more))

        try:
            async for chunk in job.chunks():
                if chunk.text or chunk.logprobs or chunk.finish_reason:
                    yield event(chunk)
        except ApiError as error:
            yield _event(error.body())
            return
        finally:
            used = usage(job.requests)
            self.metrics.add_usage(used)
        if params.include_usage:
            yield _event(response.body([], usage=used))
        yield DONE

    def _attention_weights(self, completion: Completion, params: AttentionRequest) -> dict[str, Any]:
        """The attention weights of a completed text; called in the worker's thread."""
        ids = [*completion.request.prompt, *completion.ids]
        layers: Any = _unique(params.layers)  # numbers or names
        heads, rows = _unique(params.heads), _unique(params.rows)
        try:
            with capture(self.engine.model, layers, heads, rows, limit=4 * ATTENTION_WEIGHTS) as maps, torch.no_grad():
                self.engine.model.features(torch.tensor([ids], device=self.engine.device))
        except RegardError as wrong:
            raise ApiError(f"these weights cannot be returned: {wrong}") from None
        found = [
            {
                "layer": one.layer,
                "mechanism": one.mechanism,
                "heads": list(one.heads),
                "rows": list(one.rows),
                "columns": list(one.columns),
                "weights": ((one.weights_BHLM[0].double() * 1e5).round() / 1e5).tolist(),
            }
            for one in maps.all
        ]
        tokens = [token_text(self.tokenizer, token) for token in ids]
        return {"tokens": tokens, "prompt_tokens": len(completion.request.prompt), "layers": found}

    async def _body(self, request: HttpRequest) -> bytes:
        return await read_body(request, self.body_timeout)


async def read_body(request: HttpRequest, seconds: float) -> bytes:
    """The body, within the limits of size and time."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError("the body must be JSON, with Content-Type: application/json", status=415, code="unsupported_media_type")
    too_large = ApiError(f"the body is larger than {schemas.MAX_BODY} bytes", status=413, code="too_large")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > schemas.MAX_BODY:
        raise too_large
    raw = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                raw += piece
                if len(raw) > schemas.MAX_BODY:
                    raise too_large
    except TimeoutError:
        raise ApiError(f"the body did not arrive within {seconds:g} seconds", status=408, code="timeout") from None
    return bytes(raw)


def build_app(routes: list[Route], lifespan: Any, key: str | None, metrics: Metrics) -> ASGIApp:
    """The application of some routes, with errors in one form and access checked."""
    handlers: Any = {ApiError: _api_error, HTTPException: _http_error, Exception: _unexpected_error}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return AccessMiddleware(app, key, metrics, {route.path for route in routes})


class EventStream(Response):
    """Server-sent events, until the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, job: Job, events: AsyncIterator[bytes]):
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._job, self._events = job, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _closed_at_the_end(self._job, receive):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


class AccessMiddleware:
    """Middleware: API key, or local Host header without one; request counts."""

    def __init__(self, app: ASGIApp, key: str | None, metrics: Metrics, routes: set[str]):
        self.app, self.metrics, self.routes = app, metrics, routes
        self._key = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, send_and_note)
        except ApiError as error:
            await error.response()(scope, receive, send_and_note)
        except ClientDisconnect:
            status = 499  # nobody reads a response
        except Exception:
            log.exception("a request failed")  # the client got an error response, if that was still possible
        finally:
            path = scope["path"]
            self.metrics.requests.labels(path if path in self.routes else "other", str(status or 499)).inc()

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
            raise ApiError("requests from pages of another origin are not answered", status=403, code="wrong_origin")
        if self._key is None:
            if not _is_local(headers.get(b"host", b"").decode("latin-1")):
                # DNS rebinding: a web page may have made its own name point to this machine
                raise ApiError("without an API key only requests to localhost are answered", status=403, code="wrong_host")
        elif (
            scope["path"] not in ("/health", "/")
            and not scope["path"].startswith("/static/")
            and not hmac.compare_digest(headers.get(b"authorization", b""), self._key)
        ):
            raise ApiError(
                "missing or wrong API key; expected the header Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _is_local(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _unique(chosen: list[T] | None) -> list[T] | None:
    return None if chosen is None else list(dict.fromkeys(chosen))


@asynccontextmanager
async def _closed_at_the_end(job: Job, receive: Receive) -> AsyncIterator[None]:
    """Close the job at the end, or as soon as the client disconnects."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.create_task(disconnected())
    watching.add_done_callback(lambda _: job.close())
    try:
        yield
    finally:
        watching.cancel()
        job.close()


async def _json(body: Callable[[], dict[str, Any]]) -> Response:
    """A JSON response, built in a thread because it may be large."""
    return Response(await asyncio.to_thread(lambda: msgspec.json.encode(body())), media_type="application/json")


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def _api_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, code = {
        404: ("no such path", "not_found"),
        405: ("this path does not accept this method", "method_not_allowed"),
    }.get(error.status_code, (error.detail, None))
    return ApiError(message, status=error.status_code, code=code, headers=error.headers).response()


async def _unexpected_error(request: HttpRequest, error: Exception) -> Response:
    return MODEL_FAILED.response()

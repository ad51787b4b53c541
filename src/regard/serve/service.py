"""Routes of every model: its name, health, metrics, embeddings, and the page at /. Routes validate and call; nothing here touches the model."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from torch import Tensor

from ..data import Tokenizer
from ..decode import Engine, EngineOptions
from ..errors import RegardError
from ..tasks.embedding import Embedder, EncodedText
from . import openapi, schemas
from .access import Access, AccessMiddleware
from .guards import Bodies, Timeouts
from .page import describe, page
from .responses import MODEL_FAILED, ApiError, token_text
from .worker import Metrics, NoEngine, Worker


class ServedModel:
    """One model, the thread that owns it, and the routes that every model has."""

    def __init__(
        self, name: str, engine: Engine | NoEngine, timeouts: Timeouts, tokenizer: Tokenizer, context_length: int, vocab_size: int
    ):
        self.name, self.timeouts, self.tokenizer = name, timeouts, tokenizer
        self.metrics = Metrics()
        self.worker = Worker(engine, self.metrics)
        self.metrics.prompts_open.set_function(lambda: self.worker.open)
        self.bodies = Bodies(timeouts.body)
        self.limits = schemas.Limits(
            model=name,
            vocab_size=min(vocab_size, len(tokenizer)),
            context_length=min(context_length, engine.options.max_context_tokens),
            max_batch=engine.options.max_batch,
            max_prompts=min(schemas.MAX_PROMPTS, engine.options.max_queue),
        )
        self.created = int(time.time())

    def page_routes(self) -> list[Route]:
        return [Route("/", self.home)]

    def routes(self) -> list[Route]:
        return [
            *self.page_routes(),
            Route("/health", self.health),
            Route("/metrics", self.metrics_text),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/openapi.json", self.openapi),
            Route("/docs", self.docs),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    def requests(self) -> dict[str, type[schemas.ModelRequest]]:
        """The type of the body of each route that takes one."""
        return {"/tokenize": schemas.TokenizeRequest, "/detokenize": schemas.DetokenizeRequest}

    def app(self, key: str | None = None, *, cors: Sequence[str] = (), access_log: bool = False) -> ASGIApp:
        """The ASGI application; with a `key` it accepts only requests that carry it, and from web pages only those of the origins `cors`."""
        routes = self.routes()

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await self.worker.stop()

        return build_app(routes, lifespan, Access(key, cors, access_log), self.metrics)

    # -- routes --------------------------------------------------------------------------------------------------------

    async def home(self, request: HttpRequest) -> Response:
        return page(self.name, self.routes())

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

    @cached_property
    def _description(self) -> dict[str, Any]:
        return openapi.document(self.name, self.routes(), self.requests())

    async def openapi(self, request: HttpRequest) -> Response:
        return JSONResponse(self._description)

    async def docs(self, request: HttpRequest) -> Response:
        return openapi.page(self._description)

    async def tokenize(self, request: HttpRequest) -> Response:
        params = schemas.read_tokenize(await self.bodies.read(request), self.limits)
        with self.worker.prepare():
            ids = await asyncio.to_thread(self._token_ids, params.prompt, params.add_special_tokens)
        strings = [token_text(self.tokenizer, token) for token in ids] if params.return_token_strs else None
        return await json_response(
            lambda: {"count": len(ids), "max_model_len": self.limits.context_length, "tokens": ids, "token_strs": strings}
        )

    async def detokenize(self, request: HttpRequest) -> Response:
        params = schemas.read_detokenize(await self.bodies.read(request), self.limits)
        with self.worker.prepare():
            text = await asyncio.to_thread(self.tokenizer.decode, params.tokens)
        return await json_response(lambda: {"prompt": text})

    def framed(self, text: str) -> list[int]:
        """Token ids as the model reads a text, special tokens included."""
        return [*self.tokenizer.encode(text), self.tokenizer.target_end_id]

    def _token_ids(self, text: str, special: bool) -> list[int]:
        try:
            return self.framed(text) if special else self.tokenizer.encode(text)
        except RegardError as wrong:
            raise ApiError(f"prompt: {wrong}", "prompt") from None


class ModelService(ServedModel):
    """A model with embeddings. An encoder has nothing else; `app.Service` generates text, too."""

    def __init__(
        self,
        embedder: Embedder,
        name: str,
        engine: Engine | NoEngine | None = None,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  frozen
    ):
        model, tokenizer = embedder.model, embedder.tokenizer
        super().__init__(name, engine or NoEngine(EngineOptions()), timeouts, tokenizer, model.max_length, model.config.vocab_size)
        self.embedder = embedder

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("/v1/embeddings", self.embeddings, methods=["POST"])]

    def requests(self) -> dict[str, type[schemas.ModelRequest]]:
        return {**super().requests(), "/v1/embeddings": schemas.EmbeddingRequest}

    def framed(self, text: str) -> list[int]:
        return list(self.embedder.encode(text).ids)

    async def embeddings(self, request: HttpRequest) -> Response:
        params = schemas.read_embedding(await self.bodies.read(request), self.limits)
        with self.worker.prepare():
            texts = await asyncio.to_thread(self._encode, params.texts())
        found: dict[int, Any] = {}
        deadline = time.monotonic() + self.timeouts.request
        for batch in self.embedder.batches(texts):
            if time.monotonic() > deadline or await request.is_disconnected():
                raise ApiError(
                    f"the request took longer than {self.timeouts.request:g} seconds; send fewer texts", status=504, code="timeout"
                )
            chosen = [texts[at] for at in batch]
            vectors_BD = await self.worker.call(lambda chosen=chosen: self.embedder.vectors(chosen))  # type: ignore[misc]
            found.update(zip(batch, vectors_BD, strict=True))
        width = len(next(iter(found.values())))
        if params.dimensions not in (None, width):
            raise ApiError(f"dimensions: {params.dimensions}; the vectors of this model have {width}", "dimensions")
        tokens = sum(len(text.ids) for text in texts)
        self.metrics.prompt_tokens.inc(tokens)

        def body() -> dict[str, Any]:
            show = _to_base64 if params.encoding_format == "base64" else lambda vector_D: vector_D.tolist()
            data = [{"object": "embedding", "index": at, "embedding": show(found[at])} for at in range(len(texts))]
            return {"object": "list", "model": self.name, "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}

        return await json_response(body)

    def _encode(self, texts: list[str | list[int]]) -> list[EncodedText]:
        try:
            encoded = [self.embedder.encode(text) for text in texts]
        except RegardError as wrong:
            raise ApiError(f"input: {wrong}", "input") from None
        for text in encoded:
            schemas.check_length("input", len(text.ids), self.limits)
        return encoded


def _to_base64(vector_D: Tensor) -> str:
    """Encode as OpenAI's clients ask for: float32, little-endian."""
    return base64.b64encode(vector_D.numpy().astype("<f4").tobytes()).decode()


def build_app(routes: list[Route], lifespan: Any, access: Access, metrics: Metrics) -> ASGIApp:
    """The application of some routes, with errors in one form and access checked."""

    async def http_error(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message, code = {
            404: (f"no such path; there are {', '.join(describe(routes))}", "not_found"),
            405: ("this path does not accept this method", "method_not_allowed"),
        }.get(error.status_code, (error.detail, None))
        return ApiError(message, status=error.status_code, code=code, headers=error.headers).response()

    handlers: Any = {ApiError: _api_error, HTTPException: http_error, Exception: _unexpected_error}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return AccessMiddleware(app, access, metrics, {route.path for route in routes})


async def json_response(body: Callable[[], dict[str, Any]]) -> Response:
    """A JSON response, built in a thread because it may be large."""
    return Response(await asyncio.to_thread(lambda: msgspec.json.encode(body())), media_type="application/json")


async def _api_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _unexpected_error(request: HttpRequest, error: Exception) -> Response:
    return MODEL_FAILED.response()

"""The routes of a language model: validate, submit, stream. Nothing here touches the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import torch
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..decode import Chunk, Completion, Engine, GenerationOptions, GuidedOptions, PromptEncoder, Request
from ..decode.generation import best_completions
from ..errors import RegardError
from ..look import capture
from ..tasks.embedding import Embedder, SentencePooling
from . import schemas
from .chat import ChatTemplate
from .explorer import Explorer
from .grammar_check import GrammarCheck
from .guards import Timeouts
from .playground import Playground
from .responses import ApiError, CallForm, ChatResponse, CompletionResponse, token_text, usage
from .schemas import AttentionRequest, ChatRequest, CompletionRequest, ToolChoice
from .service import ModelService, json_response
from .worker import Job

ATTENTION_TOKENS = 512  # maximum length of a text that attention weights are returned for
ATTENTION_WEIGHTS = 400_000  # maximum number of weights per response of /v1/attention
DONE = b"data: [DONE]\n\n"
NO_TOKENS = ApiError("the grammar wants characters that the tokenizer of this model has no tokens for", "response_format")
T = TypeVar("T")


class Service(ModelService):
    """A language model, its engine, and the routes to it."""

    def __init__(
        self,
        engine: Engine,
        encoder: PromptEncoder,
        name: str,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  frozen
        pooling: SentencePooling = SentencePooling(),  # noqa: B008  frozen
        own_input: Callable[[], str] | None = None,
    ):
        super().__init__(Embedder(engine.model, encoder.tokenizer, pooling), name, engine, timeouts)
        self.engine, self.encoder = engine, encoder
        self.template, self.grammars = ChatTemplate(encoder), GrammarCheck()
        self.token_texts: dict[int, str] = {}  # grows to the size of the vocabulary at most
        playground = Playground.of_language_model(engine.model, encoder.tokenizer, own_input)
        self.explorer = Explorer(playground, name, self.worker.call, self.bodies, timeouts.request)

    def page_routes(self) -> list[Route]:
        return self.explorer.routes()

    def routes(self) -> list[Route]:
        return [
            *super().routes(),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/attention", self.attention, methods=["POST"]),
        ]

    def requests(self) -> dict[str, type[schemas.ModelRequest]]:
        return {
            **super().requests(),
            "/v1/completions": schemas.CompletionRequest,
            "/v1/chat/completions": schemas.ChatRequest,
            "/v1/attention": schemas.AttentionRequest,
        }

    # -- routes --------------------------------------------------------------------------------------------------------

    async def completions(self, request: HttpRequest) -> Response:
        params = schemas.read_completion(await self.bodies.read(request), self.limits)
        options = params.options()
        with self.worker.prepare():
            requests = await asyncio.to_thread(self._requests, params.prompts(), options)
        response = CompletionResponse(self.name, self.tokenizer, self.token_texts, params.logprobs is not None)
        return await self._respond(request, params, requests, response, self._prompt_characters(params))

    async def chat(self, request: HttpRequest) -> Response:
        params = schemas.read_chat(await self.bodies.read(request), self.limits)
        with self.worker.prepare():
            requests = await asyncio.to_thread(self._chat_requests, params)
        calls: CallForm = None
        if params.callable_tools:
            calls = (
                "stop" if isinstance(params.tool_choice, ToolChoice) else "tool_calls"
            )  # of one that was named the reason is stop, as OpenAI's
        response = ChatResponse(self.name, self.tokenizer, self.token_texts, bool(params.logprobs), bool(params.stream), calls)
        return await self._respond(request, params, requests, response, [0])

    async def attention(self, request: HttpRequest) -> Response:
        params = schemas.read_attention(await self.bodies.read(request), self.limits)
        most = min(ATTENTION_TOKENS, self.limits.context_length)
        options = params.options()
        with self.worker.prepare():
            requests = await asyncio.to_thread(self._requests, params.prompts(), options)
        size = len(requests[0].prompt) + requests[0].max_tokens
        if size > most:
            raise ApiError(f"prompt and completion may have {size} tokens; expected at most {most} for weights", "max_tokens")
        job = await self.worker.submit(requests, self.timeouts.request)
        await self._finish(job, request.receive)
        ((completion,),) = (one.completions for one in requests)
        weights = await self.worker.call(lambda: self._attention_weights(completion, params))
        used = usage(requests)
        self.metrics.add_usage(used)
        return await json_response(lambda: {"object": "attention", "model": self.name, "text": completion.text, **weights, "usage": used})

    # -- their parts ---------------------------------------------------------------------------------------------------

    def _requests(self, prompts: Sequence[str | list[int]], options: GenerationOptions, name: str = "prompt") -> list[Request]:
        """Requests for the engine; called in a thread, because tokenizing a long text takes a while."""
        try:
            if isinstance(options, GuidedOptions):
                self.grammars.check(options.grammar)
            requests = self.encoder.requests(prompts, options)
        except RegardError as wrong:
            raise ApiError(f"{name}: {wrong}", name) from None
        logprobs = sum(schemas.count_logprobs(len(request.prompt), options) for request in requests)
        if logprobs > schemas.MAX_LOGPROBS:
            raise ApiError(
                f"logprobs: {logprobs:,} log-probabilities in one response; expected at most {schemas.MAX_LOGPROBS:,}", "logprobs"
            )
        for request in requests:
            schemas.check_length(name, len(request.prompt), self.limits)
            size = min(len(request.prompt) + request.max_tokens, self.engine.context_length)
            if options.num_completions * size > self.engine.options.max_context_tokens:
                raise ApiError(
                    f"{options.num_completions} completions of {size} tokens; expected at most "
                    f"{self.engine.options.max_context_tokens} tokens in all",
                    "n" if options.num_completions > 1 else "max_tokens",
                )
        return requests

    def _chat_requests(self, params: ChatRequest) -> list[Request]:
        """One prompt, by the template. By default its completion may fill the context."""
        tools = [msgspec.to_builtins(tool) for tool in params.tools or () if tool.function.name in params.callable_tools]
        ids = self.template.encode(self.template.render([message.plain() for message in params.messages], tools))
        schemas.check_length("messages", len(ids), self.limits)
        max_tokens = params.max_completion_tokens if params.max_tokens is None else params.max_tokens
        logprobs = (params.top_logprobs or 0) if params.logprobs else None
        available = min(self.limits.context_length, self.engine.options.max_context_tokens // (params.n or 1))
        options = params.options(max_tokens=max(1, available - len(ids)) if max_tokens is None else max_tokens, logprobs=logprobs)
        stop = () if isinstance(options, GuidedOptions) else (*options.stop, *self.template.stop)  # a grammar says where the answer ends
        return self._requests([ids], replace(options, stop=stop), "messages")

    def _prompt_characters(self, params: CompletionRequest) -> list[int]:
        """Characters of each prompt, which offsets include though only an echo shows them."""
        prompts = params.prompts()
        if params.echo or params.logprobs is None:
            return [0] * len(prompts)
        return [len(prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)) for prompt in prompts]

    async def _respond(
        self,
        http: HttpRequest,
        params: CompletionRequest | ChatRequest,
        requests: list[Request],
        response: CompletionResponse,
        before: list[int],
    ) -> Response:
        """The completions of these requests, whole or as events."""
        job = await self.worker.submit(requests, self.timeouts.request)
        if params.stream:
            return EventStream(job, self._events(job, params, response, before))
        await self._finish(job, http.receive)
        used = usage(requests)
        self.metrics.add_usage(used)
        if any(one.finish_reason == "error" for request in requests for one in request.completions):
            raise NO_TOKENS

        def body() -> dict[str, Any]:
            shown = [(one, start) for request, start in zip(requests, before, strict=True) for one in best_completions(request)]
            choices = [response.choice(at, one.text, one.logprobs, one.finish_reason, start) for at, (one, start) in enumerate(shown)]
            return response.body(choices, usage=used)

        return await json_response(body)

    async def _finish(self, job: Job, receive: Receive) -> None:
        """Wait until all completions have ended. If the client disconnects they are cancelled."""
        async with _closed_at_the_end(job, receive):
            async for _ in job.chunks():
                pass
        if not job.finished:
            raise ClientDisconnect

    async def _events(
        self, job: Job, params: CompletionRequest | ChatRequest, response: CompletionResponse, before: list[int]
    ) -> AsyncIterator[bytes]:
        more = {"usage": None} if params.include_usage else {}

        def event(chunk: Chunk) -> bytes:
            request = chunk.completion.request
            index = request.index * request.options.n + chunk.completion.index
            choice = response.chunk(index, chunk.text, chunk.logprobs, chunk.finish_reason, before[request.index])
            return _event(response.body([choice], **more))

        try:
            async for chunk in job.chunks():
                if chunk.finish_reason == "error":
                    raise NO_TOKENS
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


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"

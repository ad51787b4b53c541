"""The routes: parse, bound, submit, stream. Nothing here touches the model."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..data import Tokenizer
from ..decode import Engine, Options, Row, Said
from ..decode import Request as Wanted
from ..decode.complete import Text, best
from ..errors import RegardError
from ..look import capture
from . import parse
from .answers import Answer, label, usage
from .errors import BROKEN, Refused
from .metrics import Metrics
from .worker import News, Ticket, Worker

READING = 20.0  # seconds for a body to arrive
LOOKED = 512  # tokens that weights are given over
WEIGHTS = 400_000  # numbers in one answer of /v1/attention
DONE = b"data: [DONE]\n\n"
log = logging.getLogger("regard.serve")


class Service:
    """One model, its worker, and the routes to it."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, name: str):
        self.engine, self.tokenizer, self.name = engine, tokenizer, name
        self.text = Text(tokenizer, engine.vocab)
        self.labels: dict[int, str] = {}  # at most as many as there are tokens
        self.metrics = Metrics()
        self.worker = Worker(engine, self.metrics)
        self.limits = parse.Limits(
            name,
            min(engine.vocab, len(tokenizer)),
            min(engine.length, engine.positions),
            engine.rows,
            min(parse.PROMPTS, engine.most_waiting),
        )
        self.since = int(time.time())

    def app(self, key: str | None = None) -> ASGIApp:
        routes = [
            Route("/health", self.health),
            Route("/metrics", self.measured),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/attention", self.attention, methods=["POST"]),
        ]

        @asynccontextmanager
        async def life(app: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await self.worker.stop()

        handlers: Any = {Refused: _refused, HTTPException: _no_route, Exception: _broken}
        return Door(Starlette(routes=routes, lifespan=life, exception_handlers=handlers), key, self.metrics, {r.path for r in routes})

    # -- routes --------------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        if not self.worker.alive:
            raise Refused("the engine has stopped", status=503, code="unavailable")
        return JSONResponse({"status": "ok", "model": self.name})

    async def measured(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.text(prompts_open=self.worker.open), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        me = {"id": self.name, "object": "model", "created": self.since, "owned_by": "regard"}
        name = request.path_params.get("name")
        if name is None:
            return JSONResponse({"object": "list", "data": [me]})
        if name != self.name:
            raise Refused(f"no such model; this server has {self.name!r}", "model", status=404, code="model_not_found")
        return JSONResponse(me)

    async def completions(self, request: Request) -> Response:
        with self.worker.arriving():
            asked = parse.completion(parse.body(await _body(request)), self.limits)
            wanted = await asyncio.to_thread(self._requests, asked)
        ticket = await self.worker.submit(wanted, asked.options.copies)
        answer = Answer(self.name, self.tokenizer, self.labels, asked.options.alternatives is not None)
        if asked.stream:
            return Events(ticket, self._streamed(ticket, asked, answer))
        said = await self._whole(ticket, request.receive)
        used, before = usage(ticket.rows), self._before(asked)
        self.metrics.used(used["prompt_tokens"], used["completion_tokens"])

        def told() -> dict[str, Any]:
            shown = [(row, start) for some, start in zip(ticket.rows, before, strict=True) for row in best(some, asked.options.n)]
            choices = [answer.choice(at, row.text, said.get(row, []), row.finish, start) for at, (row, start) in enumerate(shown)]
            return answer.whole(choices, used)

        return await _json(told)

    async def attention(self, request: Request) -> Response:
        with self.worker.arriving():
            looked = parse.attention(parse.body(await _body(request)), self.limits)
            wanted = await asyncio.to_thread(self._requests, looked.asked, LOOKED)
        ticket = await self.worker.submit(wanted, 1)
        await self._whole(ticket, request.receive)
        ((row,),) = ticket.rows
        found = await self.worker.look(lambda: self._look(row, looked))
        used = usage(ticket.rows)
        self.metrics.used(used["prompt_tokens"], used["completion_tokens"])
        return await _json(lambda: {"object": "attention", "model": self.name, "text": row.text, **found, "usage": used})

    # -- how -----------------------------------------------------------------------------------------------------------

    def _requests(self, asked: parse.Asked, most: int | None = None) -> list[Wanted]:
        """What the engine is asked for; in a thread, as cutting a long text into tokens takes a while."""
        options: Options = asked.options
        try:
            requests = [self.text.request(prompt, options) for prompt in asked.prompts]
        except RegardError as wrong:
            raise Refused(f"prompt: {wrong}", "prompt") from None
        scores = sum(parse.scores(len(request.prompt), options) for request in requests)
        if scores > parse.SCORES:
            raise Refused(f"logprobs: {scores:,} numbers in one answer; at most {parse.SCORES:,}: ask for fewer at a time", "logprobs")
        for request in requests:
            parse.fits(len(request.prompt), options, self.limits)
            if most is not None and len(request.prompt) + options.most > most:
                raise Refused(f"weights are given over at most {most} tokens, prompt and answer together", "max_tokens")
            if options.copies * (len(request.prompt) + options.most) > self.engine.positions:
                raise Refused(f"{options.copies} such answers are more than the {self.engine.positions} tokens held at once", "best_of")
        return requests

    def _before(self, asked: parse.Asked) -> list[int]:
        """Characters of each prompt, which offsets count though only an echo shows them."""
        if asked.options.echo or asked.options.alternatives is None:
            return [0] * len(asked.prompts)
        return [len(prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)) for prompt in asked.prompts]

    async def _whole(self, ticket: Ticket, receive: Receive) -> dict[Row, list[Said]]:
        """All tokens of all answers. A client that goes ends them."""
        gone = asyncio.create_task(_gone(receive))
        gone.add_done_callback(lambda _: ticket.close())
        said: dict[Row, list[Said]] = {}
        try:
            async for news in ticket.news():
                said.setdefault(ticket.rows[news.prompt][news.choice], []).extend(news.said)
        finally:
            gone.cancel()
            ticket.close()
        if any(row.finish is None for some in ticket.rows for row in some):
            raise ClientDisconnect
        return said

    async def _streamed(self, ticket: Ticket, asked: parse.Asked, answer: Answer) -> AsyncIterator[bytes]:
        more, before = {"usage": None} if asked.usage else {}, self._before(asked)

        def event(news: News) -> bytes:
            index = news.prompt * asked.options.n + news.choice
            choice = answer.choice(index, news.text, news.said, news.finish, before[news.prompt])
            return _event({**answer.part([choice]), **more})

        try:
            async for news in ticket.news():
                if news.text or news.said or news.finish:
                    yield event(news)
        except Refused as wrong:
            yield _event(wrong.body())
            return
        finally:
            used = usage(ticket.rows)
            self.metrics.used(used["prompt_tokens"], used["completion_tokens"])
        if asked.usage:
            yield _event({**answer.part([]), "usage": used})
        yield DONE

    def _look(self, row: Row, looked: parse.Looked) -> dict[str, Any]:
        """Who looked at whom while this answer was written; in the worker's thread."""
        ids = [*row.request.prompt, *row.ids]
        try:
            with capture(self.engine.model, looked.layers, looked.heads, looked.rows, limit=4 * WEIGHTS) as maps, torch.no_grad():
                self.engine.model.features(torch.tensor([ids], device=self.engine.device))
        except RegardError as wrong:
            raise Refused(f"these weights cannot be given: {wrong}") from None
        layers = [
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
        return {"tokens": [label(self.tokenizer, token) for token in ids], "prompt_tokens": len(row.request.prompt), "layers": layers}


class Events(Response):
    """Server-sent events, as long as someone reads them."""

    media_type = "text/event-stream"

    def __init__(self, ticket: Ticket, lines: AsyncIterator[bytes]):
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._ticket, self._lines = ticket, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        gone.add_done_callback(lambda _: self._ticket.close())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for line in self._lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._ticket.close()


class Door:
    """Who comes in: the key, if there is one; without one, only whoever asks for this machine by name. And a count of who did."""

    def __init__(self, app: ASGIApp, key: str | None, metrics: Metrics, known: set[str]):
        self.app, self.metrics, self.known = app, metrics, known
        self._key = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, noted)
        except Refused as no:
            await no.response()(scope, receive, noted)
        except ClientDisconnect:
            status = 499  # nobody is there to be told
        except Exception:
            log.exception("a request failed")  # it was told so, if there was a way
        finally:
            path = scope["path"]
            self.metrics.requested(path if path in self.known else "other", status or 499)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if self._key is None:
            if not _is_here(headers.get(b"host", b"").decode("latin-1")):
                # a page in a browser may have made its own name point here
                raise Refused("without a key only requests to this machine by its own name are answered", status=403, code="wrong_host")
        elif scope["path"] != "/health" and not hmac.compare_digest(headers.get(b"authorization", b""), self._key):
            raise Refused(
                "a key is needed, as Authorization: Bearer KEY, and this is none or a wrong one",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _is_here(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


async def _body(request: Request) -> bytes:
    """The body, no larger than allowed and not slower."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("the body must be JSON, with Content-Type: application/json", status=415, code="unsupported_media_type")
    too_much = Refused(f"the body is larger than {parse.BODY} bytes", status=413, code="too_large")
    if request.headers.get("content-length", "0").isdecimal() and int(request.headers.get("content-length", "0")[:20]) > parse.BODY:
        raise too_much
    raw = bytearray()
    try:
        async with asyncio.timeout(READING):
            async for piece in request.stream():
                raw += piece
                if len(raw) > parse.BODY:
                    raise too_much
    except TimeoutError:
        raise Refused(f"the body did not arrive within {READING:.0f} seconds", status=408, code="timeout") from None
    return bytes(raw)


async def _gone(receive: Receive) -> None:
    """Returns when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _json(found: Callable[[], dict[str, Any]]) -> Response:
    """What is found, as an answer; made in a thread, as it may be large."""
    return Response(await asyncio.to_thread(lambda: _bytes(found())), media_type="application/json")


def _event(found: dict[str, Any]) -> bytes:
    return b"data: " + _bytes(found) + b"\n\n"


def _bytes(found: dict[str, Any]) -> bytes:
    return json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said, code = {
        404: ("there is nothing at this path", "not_found"),
        405: ("this path does not take this method", "method_not_allowed"),
    }.get(error.status_code, (error.detail, None))
    return Refused(said, status=error.status_code, code=code, headers=error.headers).response()


async def _broken(request: Request, error: Exception) -> Response:
    return BROKEN.response()

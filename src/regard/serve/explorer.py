"""The explorer over HTTP: the page and its files, captures of texts, their pieces, and generation with attention as it happens.

| route | what it does |
|---|---|
| `GET /`, `GET /static/NAME` | the page; nothing in it is secret, so it needs no API key |
| `GET /lineage` | every mechanism by year and family; needs no API key either |
| `GET /explorer/model` | what can be chosen: mechanisms, checkpoints |
| `GET /explorer/example` | an input of the run's own data, if it has any that can be typed |
| `POST /explorer/files` | keeps an image or a clip, for models that read files, and returns a number to name it by |
| `POST /explorer/captures` | reads a text or a file and returns the header of its maps |
| `GET /explorer/captures/ID/KEY` | one piece of a capture: a tile, exact rows, statistics |
| `POST /explorer/generate` | server-sent events: tokens with their attention weights |

Pieces are computed when they are asked for. Everything that touches the model goes through `call`, to the thread that owns it.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import NotSupported, RegardError, UnknownName
from ..look.explorer import FORMAT, VERSION, Recording
from ..look.html import static_file, static_names
from ..look.interventions import Ablation
from ..look.lineage import document, served_page
from .guards import BYTES, Bodies
from .playground import Playground
from .responses import ApiError
from .uploads import MAX_FILE, Uploads

KEPT = 8  # captures, each with the other answers to its input
KEPT_BYTES = 2 * 2**30  # of all captures together
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
Call = Callable[[Callable[[], Any]], Awaitable[Any]]
Small = Annotated[int, Meta(ge=0, lt=2**31)]


class AblationChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layer: Annotated[str, Meta(max_length=256)]
    head: Small
    how: Literal["zero", "uniform"] = "zero"


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(max_length=500_000)] = ""
    file: Annotated[str, Meta(max_length=64)] | None = None  # instead of a text: a number from /explorer/files
    ablate: Annotated[list[AblationChoice], Meta(max_length=256)] = []
    mechanism: Annotated[str, Meta(max_length=64)] | None = None
    step: Small | None = None

    def ablations(self) -> list[Ablation]:
        return [Ablation(one.layer, one.head, one.how) for one in self.ablate]


class GenerateRequest(CaptureRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_tokens: Annotated[int, Meta(ge=1, le=512)] = 24
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    seed: Small = 0
    layer: Small = 0  # whose weights to send, in order of calls
    head: Small = 0


class Explorer:
    """The routes, and the captures that pages may still ask for."""

    def __init__(self, playground: Playground, name: str, call: Call, bodies: Bodies, seconds: float = 600.0):
        """`seconds`: how long one response may take to be complete."""
        self.playground, self.name, self._call, self._bodies, self.seconds = playground, name, call, bodies, seconds
        self._kept: OrderedDict[str, list[Recording]] = OrderedDict()  # by the number of the first
        self._uploads = Uploads()
        self._lineage: bytes | None = None  # the page, made once
        self._example: asyncio.Future[str] | None = None
        self._making = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/static/{name}", self.static),
            Route("/lineage", self.lineage),
            Route("/explorer/model", self.model),
            Route("/explorer/example", self.example),
            Route("/explorer/files", self.upload, methods=["POST"]),
            Route("/explorer/captures", self.capture, methods=["POST"]),
            Route("/explorer/captures/{id}/{key:path}", self.piece),
            Route("/explorer/generate", self.generate, methods=["POST"]),
        ]

    async def page(self, request: HttpRequest) -> Response:
        return Response(static_file("index.html"), media_type="text/html", headers=SECURITY)

    async def lineage(self, request: HttpRequest) -> Response:
        async with self._making:
            if self._lineage is None:
                self._lineage = await self._call(lambda: served_page(document()).encode())
        return Response(self._lineage, media_type="text/html", headers=SECURITY)

    async def static(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        if name not in static_names():
            raise ApiError("no such file", status=404, code="not_found")
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        return Response(static_file(name), media_type=kind, headers=SECURITY | {"Cache-Control": "no-cache"})

    async def model(self, request: HttpRequest) -> Response:
        described = await self._call(self.playground.describe)
        return JSONResponse(
            {"format": FORMAT, "format_version": VERSION, "title": self.name, "captures": [], **described}, headers=SECURITY
        )

    async def example(self, request: HttpRequest) -> Response:
        if self._example is None:
            self._example = asyncio.ensure_future(asyncio.to_thread(self.playground.example))  # reads data, once; the model stays free
        return JSONResponse({"text": await asyncio.shield(self._example)}, headers=SECURITY)

    async def upload(self, request: HttpRequest) -> Response:
        if self.playground.inputs != "file":
            raise ApiError("this model reads texts, not files", code="unsupported")
        data = await self._bodies.read(request, BYTES, MAX_FILE)
        return JSONResponse({"file": await self._try(lambda: self._uploads.add(data))}, headers=SECURITY)

    async def capture(self, request: HttpRequest) -> Response:
        asked = _decode(await self._bodies.read(request), CaptureRequest)
        header = await self._try(lambda: self._record(asked))
        return Response(msgspec.json.encode(header), media_type="application/json", headers=SECURITY)

    async def piece(self, request: HttpRequest) -> Response:
        group = self._kept.get(request.path_params["id"].partition(".")[0], [])
        found = next((one for one in group if one.id == request.path_params["id"]), None)
        if found is None:
            raise ApiError("no such capture; the server keeps the last few", status=404, code="not_found")
        data = await self._try(lambda: found.piece(request.path_params["key"]), status=404)
        return Response(data, media_type="application/octet-stream", headers=SECURITY | {"Cache-Control": "private, max-age=3600"})

    async def generate(self, request: HttpRequest) -> Response:
        asked = _decode(await self._bodies.read(request), GenerateRequest)
        events = self.playground.generate(
            asked.text,
            asked.max_tokens,
            asked.temperature,
            asked.seed,
            asked.ablations(),
            asked.mechanism,
            asked.step,
            asked.layer,
            asked.head,
        )
        deadline = time.monotonic() + self.seconds
        first = await self._try(lambda: next(events, {}))

        async def stream() -> AsyncIterator[bytes]:
            yield _event(first)
            try:
                while (event := await self._try(lambda: next(events, None))) is not None:
                    yield _event(event)
                    if time.monotonic() > deadline:
                        reason = f"the request took longer than {self.seconds:g} seconds; lower max_tokens"
                        raise ApiError(reason, status=504, code="timeout")
            except ApiError as error:
                yield _event(error.body())

        return StreamingResponse(stream(), media_type="text/event-stream", headers=SECURITY | {"Cache-Control": "no-store"})

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _record(self, asked: CaptureRequest) -> dict[str, Any]:
        reads_files = self.playground.inputs == "file"
        if (asked.file is None) == reads_files or bool(asked.text) == reads_files:
            raise NotSupported("this model reads a file; send one to /explorer/files" if reads_files else "expected a text, and no file")
        with nullcontext(asked.text) if asked.file is None else self._uploads.path(asked.file) as given:
            recordings = self.playground.record(given, asked.ablations(), asked.mechanism, asked.step)
        header, *others = (one.header() for one in recordings)
        self._kept[recordings[0].id] = recordings
        while len(self._kept) > KEPT or (len(self._kept) > 1 and self._kept_bytes() > KEPT_BYTES):
            self._kept.popitem(last=False)
        return {**header, "alternatives": others}

    def _kept_bytes(self) -> int:
        return sum(one.nbytes for group in self._kept.values() for one in group)

    async def _try(self, task: Callable[[], Any], status: int = 400) -> Any:
        """The result of something that needs the model; what a user can cause is an error response."""
        try:
            return await self._call(task)
        except RegardError as wrong:
            raise ApiError(str(wrong), status=404 if isinstance(wrong, UnknownName) and status == 404 else 400) from None


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise ApiError(f"the body: {str(wrong)[:200]}") from None


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

"""The routes of an encoder-decoder: /v1/completions takes sources as prompts, and answers with what the decoder writes about them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from ..decode import Beam, EngineOptions, Hypothesis, Sampling
from ..errors import RegardError
from ..models import Translator
from ..runs import Run
from ..tasks.translation import bound_task, translations
from . import schemas
from .explorer import Explorer
from .guards import Timeouts
from .playground import Playground
from .responses import ApiError, CompletionResponse
from .schemas import CompletionRequest
from .service import ServedModel, json_response
from .worker import NoEngine

BEAM = 4  # hypotheses that are followed where no temperature is given
AT_ONCE = 8  # sources decoded together; between two such batches others have their turn
READ = {"model", "user", "prompt", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "n", "best_of"}  # fields with an effect


class TranslatorService(ServedModel):
    """A translator, and the routes to it. Without a temperature, or at 0, it searches with a beam; else it samples."""

    def __init__(self, run: Run[Translator], name: str, engine_options: EngineOptions | None = None, timeouts: Timeouts = Timeouts()):  # noqa: B008  frozen
        tokenizers, config = run.processor.tokenizers, run.model.config
        super().__init__(
            name, NoEngine(engine_options or EngineOptions()), timeouts, tokenizers.source, run.model.max_length, config.source_vocab_size
        )
        self.run = run
        self.explorer = Explorer(Playground.of_run(run), name, self.worker.call, self.bodies, timeouts.request)

    def page_routes(self) -> list[Route]:
        return self.explorer.routes()

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("/v1/completions", self.completions, methods=["POST"])]

    def requests(self) -> dict[str, type[schemas.ModelRequest]]:
        return {**super().requests(), "/v1/completions": CompletionRequest}

    async def completions(self, request: HttpRequest) -> Response:
        params = schemas.read_completion(await self.bodies.read(request), self.limits)
        _check_fields(params)
        sources = [_source(prompt) for prompt in params.prompts()]
        with self.worker.prepare():
            lengths = await asyncio.to_thread(lambda: [len(ids) for ids in self.tokenizer.encode_all(sources)])
        for length in lengths:
            schemas.check_length("prompt", length + 1, self.limits)  # and the end token
        answers: list[list[Hypothesis]] = []
        try:
            async with asyncio.timeout(self.timeouts.request):
                for first in range(0, len(sources), AT_ONCE):
                    batch = sources[first : first + AT_ONCE]
                    answers += await self.worker.call(lambda batch=batch, first=first: self._answers(batch, params, first))  # type: ignore[misc]
        except TimeoutError:
            raise ApiError(
                f"the request took longer than {self.timeouts.request:g} seconds; send fewer prompts", status=504, code="timeout"
            ) from None
        generated = sum(len(one.ids) + one.finished for found in answers for one in found)
        used = {"prompt_tokens": sum(lengths), "completion_tokens": generated, "total_tokens": sum(lengths) + generated}
        self.metrics.add_usage(used)

        def body() -> dict[str, Any]:
            text, response = bound_task(self.run).text, CompletionResponse(self.name, self.tokenizer, {}, False)
            choices = [one for found in answers for one in found[: params.n or 1]]
            shown = [response.choice(at, text(one), (), "stop" if one.finished else "length", 0) for at, one in enumerate(choices)]
            return response.body(shown, usage=used)

        return await json_response(body)

    def _answers(self, sources: Sequence[str], params: CompletionRequest, first: int) -> list[list[Hypothesis]]:
        """The hypotheses of each source, best first; called in the worker's thread."""
        n, most = params.n or 1, max(params.n or 1, params.best_of or 1)
        limit = None if params.max_tokens is None else min(params.max_tokens, self.run.model.max_length)
        try:
            if not params.temperature:
                size = params.best_of or max(n, BEAM)
                return [found for _, found in translations(self.run, sources, Beam(size=size, nbest=n, max_tokens=limit))]
            options = params.options()
            sampling = Sampling(
                temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, min_p=options.min_p,
                seed=None if params.seed is None else params.seed + first, max_tokens=limit,
            )  # fmt: skip
            drawn = [found[0] for _, found in translations(self.run, [one for one in sources for _ in range(most)], sampling)]
        except RegardError as wrong:
            raise ApiError(str(wrong)) from None
        groups = [drawn[at : at + most] for at in range(0, len(drawn), most)]
        return [sorted(group, key=_per_token)[:n] if most > n else group for group in groups]


def _per_token(one: Hypothesis) -> float:
    """Minus the log-probability per token."""
    return -one.log_prob / max(len(one.ids) + one.finished, 1)


def _source(prompt: str | list[int]) -> str:
    if not isinstance(prompt, str) or not prompt.strip():
        raise ApiError("prompt: a translator reads texts, none of them empty", "prompt")
    return prompt


def _check_fields(params: CompletionRequest) -> None:
    """Refuse by name what a translator does not do."""
    if params.max_tokens == 0:
        raise ApiError("max_tokens: 0; a translator writes at least one token", "max_tokens")
    default = CompletionRequest()
    for name in params.__struct_fields__:
        if name not in READ and (getattr(params, name) or None) != getattr(default, name):
            raise ApiError(f"{name}: this model is a translator, which does not take it; leave it out", name, code="unsupported_value")

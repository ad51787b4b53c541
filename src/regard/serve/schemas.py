"""Request bodies: every field has a declared type and bounds, checked by msgspec; what depends on the model is checked after."""

from __future__ import annotations

import difflib
import re
import secrets
from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ..decode import GenerationOptions
from ..errors import NotSupported
from .responses import ApiError

MAX_BODY = 2**20  # bytes
MAX_PROMPTS = 64
MAX_LOGPROBS = 500_000  # per response
MAX_CHARACTERS = 64  # of a prompt, per token of the context length: a longer text is refused before it is tokenized
DEFAULTS = {"max_tokens": 16, "temperature": 1.0}  # OpenAI's
OPTIONS = {field.name for field in fields(GenerationOptions)}

Count = Annotated[int, Meta(ge=1, lt=2**31)]
Token = Annotated[int, Meta(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Meta(min_length=1)]
Text = Annotated[str, Meta(min_length=1, max_length=256)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Index = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Indices = Annotated[list[Index], Meta(min_length=1, max_length=64)]
R = TypeVar("R", bound="GenerationRequest")


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all routes that generate text have in common. null is the same as absent."""

    model: str | None = None
    prompt: str | Annotated[list[str | Token | Tokens], Meta(min_length=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Fraction | None = None
    seed: int | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=16)] | None = None
    logit_bias: Annotated[dict[Token, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    user: str | None = None

    def options(self) -> GenerationOptions:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if name in OPTIONS and value is not None}
        if "top_p" in given:
            given["top_p"] = max(given["top_p"], 1e-9)  # 0 keeps the most likely token
        if "top_k" in given:
            given["top_k"] = max(given["top_k"], 0)  # -1 keeps all tokens, as for other servers
        if "stop" in given:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(given["stop"])
        try:
            return GenerationOptions(**{"seed": secrets.randbits(63), **DEFAULTS, **given})
        except NotSupported as wrong:
            raise ApiError(str(wrong)) from None

    def prompts(self) -> list[str | list[int]]:
        """The prompts as texts or lists of token ids."""
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]
        kinds = {type(one) for one in self.prompt}
        if len(kinds) > 1:
            raise ApiError("prompt: expected a string, a list of strings, a list of tokens, or a list of such lists", "prompt")
        return [self.prompt] if kinds == {int} else list(self.prompt)  # type: ignore[list-item, arg-type]


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    n: Count | None = None
    best_of: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class AttentionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which attention weights to return: layers by number or name, heads and query positions by number; by default all."""

    layers: Annotated[list[Index | Text], Meta(min_length=1, max_length=64)] | None = None
    heads: Indices | None = None
    rows: Indices | None = None


@dataclass(frozen=True)
class Limits:
    """What the model and the engine can take."""

    model: str
    vocab_size: int
    context_length: int
    max_batch: int
    max_prompts: int = MAX_PROMPTS


def read_completion(body: bytes, limits: Limits) -> CompletionRequest:
    request = _decode(body, CompletionRequest, limits)
    n, best_of = request.n or 1, request.best_of or request.n or 1
    if request.suffix:
        raise ApiError("suffix: this model generates from left to right and cannot fill a gap; leave it out", "suffix")
    if max(n, best_of) > limits.max_batch:
        name = "n" if n > limits.max_batch else "best_of"
        raise ApiError(f"{name}: {max(n, best_of)}; expected at most {limits.max_batch} completions per prompt", name)
    if best_of < n:
        raise ApiError(f"best_of: {best_of} is less than n={n}; expected at least n", "best_of")
    if request.stream and best_of > n:
        raise ApiError("best_of: the best are known at the end, so they cannot be streamed; leave out stream or best_of", "best_of")
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options: expected only together with stream", "stream_options")
    return request


def read_attention(body: bytes, limits: Limits) -> AttentionRequest:
    request = _decode(body, AttentionRequest, limits)
    if len(request.prompts()) != 1:
        raise ApiError(f"prompt: {len(request.prompts())} prompts; expected one, as weights are returned for one at a time", "prompt")
    if request.layers is not None and len({isinstance(layer, str) for layer in request.layers}) > 1:
        raise ApiError("layers: numbers and names; expected one or the other", "layers")
    return request


def check_length(prompt: int, max_tokens: int, limits: Limits) -> None:
    """Check that `prompt` tokens and `max_tokens` new ones fit in the context."""
    if prompt + max_tokens > limits.context_length:
        raise ApiError(
            f"the prompt has {prompt} tokens and max_tokens is {max_tokens}; expected at most {limits.context_length} in all",
            "prompt" if prompt > limits.context_length else "max_tokens",
            code="context_length_exceeded",
        )


def count_logprobs(prompt: int, options: GenerationOptions) -> int:
    """The number of log-probabilities in the completions of a prompt of `prompt` tokens, at most."""
    if options.logprobs is None:
        return 0
    return options.num_completions * ((options.max_tokens or 0) + prompt * options.echo) * (1 + options.logprobs)


def _decode(body: bytes, kind: type[R], limits: Limits) -> R:
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as wrong:
        raise _validation_error(str(wrong), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise ApiError(f"the body is not valid JSON: {wrong}") from None
    if request.model not in (None, limits.model):
        raise ApiError(f"no such model; this server has {limits.model!r}", "model", status=404, code="model_not_found")
    _check_prompts(request.prompts(), limits)
    if (request.max_tokens or 0) > limits.context_length:
        raise ApiError(f"max_tokens: {request.max_tokens}; expected at most {limits.context_length}", "max_tokens")
    for token in request.logit_bias or ():
        if token >= limits.vocab_size:
            raise ApiError(f"logit_bias: token {token}; expected 0 to {limits.vocab_size - 1}", "logit_bias")
    return request


def _check_prompts(prompts: list[str | list[int]], limits: Limits) -> None:
    if len(prompts) > limits.max_prompts:
        raise ApiError(f"prompt: {len(prompts)} prompts in one request; expected at most {limits.max_prompts}", "prompt")
    for prompt in prompts:
        unit, most = (
            ("characters", MAX_CHARACTERS * limits.context_length) if isinstance(prompt, str) else ("tokens", limits.context_length)
        )
        if len(prompt) > most:
            raise ApiError(
                f"prompt: {len(prompt)} {unit}; this model reads at most {limits.context_length} tokens",
                "prompt",
                code="context_length_exceeded",
            )
        if not isinstance(prompt, str) and max(prompt) >= limits.vocab_size:
            raise ApiError(f"prompt: token {max(prompt)}; expected 0 to {limits.vocab_size - 1}", "prompt")


def _validation_error(message: str, kind: type[GenerationRequest]) -> ApiError:
    """msgspec's message with the offending parameter first: "Expected `float` <= 2.0 - at `$.temperature`"."""
    at = re.search(r" - at (?:`key` in )?`\$\.(\w+)[^`]*`$", message)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL)
    if at is not None:
        return ApiError(f"{at[1]}: {_sentence(message[: at.start()])}", at[1])
    if unknown is not None:
        name = unknown[1][:64]
        near = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
        return ApiError(f"{name}: no such parameter{f'; did you mean {near[0]}?' if near else ''}", name, code="unknown_argument")
    return ApiError(f"the body: {_sentence(message)}")


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:200]

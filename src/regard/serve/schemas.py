"""Request bodies: every field has a declared type and bounds, checked by msgspec; what depends on the model is checked after."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..decode import GenerationOptions
from ..errors import NotSupported
from .responses import ApiError

MAX_PROMPTS = 64
MAX_TEXTS = 256  # to embed, per request
MAX_MESSAGES = 1000
MAX_LOGPROBS = 500_000  # per response
MAX_CHARACTERS = 64  # of a prompt, per token of the context length: a longer text is refused before it is tokenized
COMPLETION_TOKENS = 16  # OpenAI's default
OPTIONS = {field.name for field in fields(GenerationOptions)}

Count = Annotated[int, Meta(ge=1, lt=2**31)]
Token = Annotated[int, Meta(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Meta(min_length=1)]
Text = Annotated[str, Meta(min_length=1, max_length=256)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Index = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Indices = Annotated[list[Index], Meta(min_length=1, max_length=64)]
Prompts = str | Annotated[list[str | Token | Tokens], Meta(min_length=1)]
R = TypeVar("R", bound="ModelRequest")


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all routes have in common. null is the same as absent."""

    model: str | None = None
    user: str | None = None


class SamplingRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all routes that generate text have in common: those of `GenerationOptions`, with bounds."""

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
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None

    def options(self, **more: Any) -> GenerationOptions:
        """The options of generation; `more` replaces what the request has."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if name in OPTIONS and value is not None}
        if "top_p" in given:
            given["top_p"] = max(given["top_p"], 1e-9)  # 0 keeps the most likely token
        if "top_k" in given:
            given["top_k"] = max(given["top_k"], 0)  # -1 keeps all tokens, as for other servers
        if "stop" in given:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(given["stop"])
        try:
            return GenerationOptions(**{**given, **more})
        except NotSupported as wrong:
            raise ApiError(str(wrong)) from None


class GenerationRequest(SamplingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts to complete."""

    prompt: Prompts | None = None

    def options(self, **more: Any) -> GenerationOptions:
        return super().options(**{"max_tokens": COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens, **more})

    def prompts(self) -> list[str | list[int]]:
        """The prompts as texts or lists of token ids."""
        return _as_list(self.prompt or "", "prompt")


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
    """Selection of the attention weights to return: layers by number or name, heads and query positions by number; by default all."""

    layers: Annotated[list[Index | Text], Meta(min_length=1, max_length=64)] | None = None
    heads: Indices | None = None
    rows: Indices | None = None


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[TextPart] | None = None
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Convert to what templates expect."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": self.role, "content": text, **({} if self.name is None else {"name": self.name})}


class ChatRequest(SamplingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation to continue. `max_completion_tokens` is OpenAI's newer name of `max_tokens`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    n: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class EmbeddingRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to turn into vectors."""

    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"

    def texts(self) -> list[str | list[int]]:
        return _as_list(self.input, "input")


def _as_list(given: str | list[Any], name: str) -> list[str | list[int]]:
    """One or several texts or lists of token ids, as a list."""
    if isinstance(given, str):
        return [given]
    kinds = {type(one) for one in given}
    if len(kinds) > 1:
        raise ApiError(f"{name}: expected a string, a list of strings, a list of tokens, or a list of such lists", name)
    return [given] if kinds == {int} else list(given)


@dataclass(frozen=True)
class Limits:
    """Limits of the model and the engine."""

    model: str
    vocab_size: int
    context_length: int
    max_batch: int
    max_prompts: int = MAX_PROMPTS


def read_completion(body: bytes, limits: Limits) -> CompletionRequest:
    request = _decode(body, CompletionRequest, limits)
    _check_prompts(request.prompts(), limits, "prompt", limits.max_prompts)
    _check_sampling(request, limits)
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
    _check_stream(request)
    return request


def read_chat(body: bytes, limits: Limits) -> ChatRequest:
    request = _decode(body, ChatRequest, limits)
    _check_sampling(request, limits)
    if (request.n or 1) > limits.max_batch:
        raise ApiError(f"n: {request.n}; expected at most {limits.max_batch} completions", "n")
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError("top_logprobs: expected only together with logprobs", "top_logprobs")
    size = sum(len(message.plain()["content"]) for message in request.messages)
    if size > MAX_CHARACTERS * limits.context_length:
        raise _too_long("messages", size, "characters", limits)
    _check_stream(request)
    return request


def read_embedding(body: bytes, limits: Limits) -> EmbeddingRequest:
    request = _decode(body, EmbeddingRequest, limits)
    texts = request.texts()
    if "" in texts:
        raise ApiError("input: an empty text has no tokens to take the mean of", "input")
    _check_prompts(texts, limits, "input", MAX_TEXTS)
    return request


def read_attention(body: bytes, limits: Limits) -> AttentionRequest:
    request = _decode(body, AttentionRequest, limits)
    _check_prompts(request.prompts(), limits, "prompt", limits.max_prompts)
    _check_sampling(request, limits)
    if len(request.prompts()) != 1:
        raise ApiError(f"prompt: {len(request.prompts())} prompts; expected one, as weights are returned for one at a time", "prompt")
    if request.layers is not None and len({isinstance(layer, str) for layer in request.layers}) > 1:
        raise ApiError("layers: numbers and names; expected one or the other", "layers")
    return request


def check_length(name: str, tokens: int, limits: Limits) -> None:
    """Check that a prompt fits in the context. Its completion may go on beyond."""
    if tokens > limits.context_length:
        raise _too_long(name, tokens, "tokens", limits)


def _too_long(name: str, size: int, unit: str, limits: Limits) -> ApiError:
    message = f"{name}: {size} {unit}; this model reads at most {limits.context_length} tokens"
    return ApiError(message, name, code="context_length_exceeded")


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
    return request


def _check_sampling(request: SamplingRequest, limits: Limits) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        if (getattr(request, name, None) or 0) > limits.context_length:
            raise ApiError(f"{name}: {getattr(request, name)}; expected at most {limits.context_length}", name)
    for token in request.logit_bias or ():
        if token >= limits.vocab_size:
            raise ApiError(f"logit_bias: token {token}; expected 0 to {limits.vocab_size - 1}", "logit_bias")


def _check_stream(request: CompletionRequest | ChatRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options: expected only together with stream", "stream_options")


def _check_prompts(prompts: list[str | list[int]], limits: Limits, name: str, count: int) -> None:
    if len(prompts) > count:
        raise ApiError(f"{name}: {len(prompts)} texts in one request; expected at most {count}", name)
    for prompt in prompts:
        if len(prompt) > MAX_CHARACTERS * limits.context_length:
            raise _too_long(name, len(prompt), "characters" if isinstance(prompt, str) else "tokens", limits)
        if not isinstance(prompt, str):
            check_length(name, len(prompt), limits)
            if max(prompt) >= limits.vocab_size:
                raise ApiError(f"{name}: token {max(prompt)}; expected 0 to {limits.vocab_size - 1}", name)


def _validation_error(message: str, kind: type[ModelRequest]) -> ApiError:
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

"""Request bodies: every field has a declared type and bounds, checked by msgspec; what depends on the model is checked after."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..decode import GenerationOptions, Grammar, GuidedOptions
from ..errors import NotSupported
from .responses import ApiError

MAX_PROMPTS = 64
MAX_TEXTS = 256  # to embed, per request
MAX_MESSAGES = 1000
MAX_TOKENS = 100_000  # of a completion, where the context length is less: beyond the context its oldest tokens are dropped
MAX_TOOLS = 128
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
Schema = dict[str, Any]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
R = TypeVar("R", bound="ModelRequest")

# Fields of OpenAI's clients, vLLM and llama.cpp that a request may have although nothing here depends on them: the values that change
# nothing, or a type all of whose values do. Other values are refused by name.
NEUTRAL: Mapping[str, type | tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "audio": (),
    "cache_prompt": bool,
    "continue_final_message": (False,),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "metadata": dict,
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": bool,
    "prediction": (),
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "reasoning_effort": ("none",),
    "safety_identifier": str,
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def changes_nothing(name: str, value: Any) -> bool:
    """Return whether a field is one of NEUTRAL with such a value; null is the same as absent."""
    known = NEUTRAL.get(name)
    if known is None or value is None:
        return known is not None
    if isinstance(known, type):
        return isinstance(value, known)
    return any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in known)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all routes have in common. null is the same as absent."""

    model: str | None = None
    user: str | None = None


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema with its name; an answer is always valid under it, as with `strict`."""

    name: str | None = None
    schema: Schema | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's form of a grammar."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def grammar(self) -> Grammar | None:
        if self.type == "text":
            return None
        given = None if self.json_schema is None else self.json_schema.schema
        if self.type == "json_schema" and given is None:
            raise ApiError("response_format: expected a schema in json_schema", "response_format")
        return Grammar.json_object() if self.type == "json_object" else Grammar.json_schema(given or {})


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's form of a grammar: one of them."""

    json: Schema | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None
    json_object: bool | None = None

    def grammars(self) -> list[Grammar]:
        return [
            *([] if self.json is None else [Grammar.json_schema(self.json)]),
            *([] if self.regex is None else [Grammar.regex(self.regex)]),
            *([] if self.choice is None else [Grammar.choice(self.choice)]),
            *([Grammar.json_object()] if self.json_object else []),
        ]


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
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None

    def options(self, **more: Any) -> GenerationOptions:
        """The options of generation; `more` replaces what the request has."""
        given: dict[str, Any] = {
            name: value for name, value in msgspec.structs.asdict(self).items() if name in OPTIONS and value is not None
        }
        if "top_p" in given:
            given["top_p"] = max(given["top_p"], 1e-9)  # 0 keeps the most likely token
        if "top_k" in given:
            given["top_k"] = max(given["top_k"], 0)  # -1 keeps all tokens, as for other servers
        if "stop" in given:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(given["stop"])
        try:
            grammar = self.grammar()
            return GenerationOptions(**given | more) if grammar is None else GuidedOptions(**given | more, grammar=grammar)
        except NotSupported as wrong:
            raise ApiError(str(wrong)) from None

    def grammar(self) -> Grammar | None:
        """The grammar that the completion follows, by whichever field gives it."""
        older = StructuredOutputs(json=self.guided_json, regex=self.guided_regex, choice=self.guided_choice)
        try:
            found = [*older.grammars(), *(self.structured_outputs.grammars() if self.structured_outputs else [])]
            formatted = None if self.response_format is None else self.response_format.grammar()
        except NotSupported as wrong:
            raise ApiError(str(wrong)) from None
        if formatted is not None:
            found.append(formatted)
        if len(found) > 1:
            raise ApiError(f"{len(found)} grammars (response_format, structured_outputs, guided_…); expected one", "response_format")
        return found[0] if found else None


class GenerationRequest(SamplingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts to complete."""

    prompt: Prompts | None = None

    def options(self, **more: Any) -> GenerationOptions:
        return super().options(**{"max_tokens": COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens, **more})

    def prompts(self) -> list[str | list[int]]:
        """The prompts as texts or lists of token ids."""
        return _as_list(self.prompt or "", "prompt")


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts to complete, as OpenAI's completions."""

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


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    arguments: str

    def as_object(self) -> Any:
        """The arguments as templates expect them; text that is not JSON stays text."""
        try:
            return msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, RecursionError):
            return self.arguments


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that an earlier answer made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """Convert to what templates expect."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.as_object()}}
            for call in self.tool_calls or ()
        ]
        more = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": calls}
        return {"role": self.role, "content": text, **{name: value for name, value in more.items() if value}}


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that an answer may call; `parameters` is a JSON schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: Function
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    function: FunctionName
    type: Literal["function"] = "function"


class ChatRequest(SamplingRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation to continue. `max_completion_tokens` is OpenAI's newer name of `max_tokens`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    n: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def callable_tools(self) -> dict[str, Function]:
        """The functions that the answer may call, by name."""
        choice = self.tool_choice.function.name if isinstance(self.tool_choice, ToolChoice) else None
        functions = [] if self.tool_choice == "none" else [tool.function for tool in self.tools or ()]
        return {function.name: function for function in functions if choice in (None, function.name)}

    def grammar(self) -> Grammar | None:
        found, tools = super().grammar(), self.callable_tools
        if not tools:
            return found
        if found is not None:
            raise ApiError("response_format: not together with tools that may be called; leave one of them out", "response_format")
        required = self.tool_choice == "required" or isinstance(self.tool_choice, ToolChoice)
        try:
            return Grammar.tools({name: one.parameters for name, one in tools.items()}, required)
        except NotSupported as wrong:
            raise ApiError(f"tools: {wrong}", "tools") from None


class EmbeddingRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to turn into vectors."""

    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None

    def texts(self) -> list[str | list[int]]:
        return _as_list(self.input, "input")


class TokenizeRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text to split into tokens, as vLLM's; with the tokens that begin every prompt unless `add_special_tokens` is false."""

    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class DetokenizeRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids to join into a text."""

    tokens: list[Token]


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
    _check_tools(request)
    return request


def read_embedding(body: bytes, limits: Limits) -> EmbeddingRequest:
    request = _decode(body, EmbeddingRequest, limits)
    texts = request.texts()
    if "" in texts:
        raise ApiError("input: an empty text has no tokens to take the mean of", "input")
    _check_prompts(texts, limits, "input", MAX_TEXTS)
    return request


def read_tokenize(body: bytes, limits: Limits) -> TokenizeRequest:
    return _decode(body, TokenizeRequest, limits)  # of any length: a text that is too long for the model is what one wants to know


def read_detokenize(body: bytes, limits: Limits) -> DetokenizeRequest:
    request = _decode(body, DetokenizeRequest, limits)
    if request.tokens and max(request.tokens) >= limits.vocab_size:
        raise ApiError(f"tokens: {max(request.tokens)}; expected 0 to {limits.vocab_size - 1}", "tokens")
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


def _check_tools(request: ChatRequest) -> None:
    names = [tool.function.name for tool in request.tools or ()]
    if len(set(names)) < len(names):
        raise ApiError("tools: two functions of one name", "tools")
    if request.tool_choice == "required" and not names:
        raise ApiError("tool_choice: required, and there are no tools", "tool_choice")
    if isinstance(request.tool_choice, ToolChoice) and request.tool_choice.function.name not in names:
        raise ApiError(f"tool_choice: {request.tool_choice.function.name} is not among the tools", "tool_choice")


def _decode(body: bytes, kind: type[R], limits: Limits) -> R:
    try:
        try:
            request = msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            given = msgspec.json.decode(body)
            if not isinstance(given, dict):
                raise
            rest = {name: value for name, value in given.items() if name in kind.__struct_fields__ or not changes_nothing(name, value)}
            if len(rest) == len(given):
                raise
            request = msgspec.convert(rest, kind, str_keys=True)
    except msgspec.ValidationError as wrong:
        raise _validation_error(str(wrong), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise ApiError(f"the body is not valid JSON: {wrong}") from None
    if request.model not in (None, limits.model):
        raise ApiError(f"no such model; this server has {limits.model!r}", "model", status=404, code="model_not_found")
    return request


def _check_sampling(request: SamplingRequest, limits: Limits) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        most = max(limits.context_length, MAX_TOKENS)
        if (getattr(request, name, None) or 0) > most:
            raise ApiError(f"{name}: {getattr(request, name)}; expected at most {most}", name)
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
        if name in NEUTRAL:
            return ApiError(f"{name}: this server cannot do that; expected {_expected(name)}", name, code="unsupported_value")
        near = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
        return ApiError(f"{name}: no such parameter{f'; did you mean {near[0]}?' if near else ''}", name, code="unknown_argument")
    return ApiError(f"the body: {_sentence(message)}")


def _expected(name: str) -> str:
    """The values of a field that changes nothing, in words."""
    known = NEUTRAL[name]
    shown = known.__name__ if isinstance(known, type) else " or ".join(json.dumps(one) for one in known)
    return f"{shown}, or leave it out" if shown else "null, or leave it out"


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:200]

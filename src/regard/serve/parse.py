"""From the bytes of a request to what the engine is asked: every field has a type and bounds, and is checked before anything is made of it."""

from __future__ import annotations

import difflib
import json
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..decode import Options, Sampling
from ..errors import NotSupported
from .errors import Refused

BODY = 2**20  # bytes
PROMPTS = 64  # in a request
STOPS, STOP = 16, 256  # strings, characters of each
BIASES = 300
ALTERNATIVES = 20
SCORES = 500_000  # log-probabilities in one answer
CHARACTERS = 64  # of a prompt for each token that the model reads: no text of more is cut before it is refused
PROMPT_FIELDS = ("model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias")
PENALTIES = ("presence_penalty", "frequency_penalty")
COMPLETION_FIELDS = (
    *PROMPT_FIELDS, *PENALTIES, "n", "best_of", "logprobs", "echo", "stream", "stream_options", "suffix", "user",
)  # fmt: skip
ATTENTION_FIELDS = (*PROMPT_FIELDS, *PENALTIES, "layers", "heads", "rows", "user")


@dataclass(frozen=True)
class Limits:
    """What the model and the engine can take."""

    name: str
    vocab: int
    length: int
    rows: int
    prompts: int = PROMPTS


@dataclass(frozen=True)
class Asked:
    """A completion, as asked for."""

    prompts: list[str | list[int]]
    options: Options
    stream: bool = False
    usage: bool = False


def body(raw: bytes) -> dict[str, Any]:
    """The JSON object that these bytes are."""
    try:
        found = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as wrong:
        raise Refused(f"the body is not JSON: {wrong}" if isinstance(wrong, ValueError) else "the body is nested too deeply") from None
    if not isinstance(found, dict):
        raise Refused("the body must be a JSON object")
    return found


def completion(found: dict[str, Any], limits: Limits) -> Asked:
    given = _Fields(found, COMPLETION_FIELDS, limits)
    if given.found.get("suffix") not in (None, ""):
        raise Refused("suffix: this model writes from left to right and cannot fill a gap; leave it out", "suffix")
    given.text("user", None)
    n = given.whole("n", 1, 1, limits.rows)
    best_of = given.whole("best_of", n, 1, limits.rows)
    stream, chosen = given.flag("stream"), given.found.get("stream_options")
    if best_of < n:
        raise Refused(f"best_of: {best_of} answers cannot hold the {n} best ones; expected at least n", "best_of")
    if stream and best_of > n:
        raise Refused(
            "best_of: which answers are best is known at their end, so they cannot be streamed; leave out stream or best_of", "best_of"
        )
    known = isinstance(chosen, dict) and all(name == "include_usage" and type(value) is bool for name, value in chosen.items())
    if chosen is not None and not (stream and known):
        raise Refused('stream_options: expected an object as {"include_usage": true}, and only with stream', "stream_options")
    logprobs = None if given.found.get("logprobs") is None else given.whole("logprobs", 0, 0, ALTERNATIVES)
    options = given.options(n=n, best_of=best_of, alternatives=logprobs, echo=given.flag("echo"))
    return Asked(given.prompts(), options, stream, bool(chosen and chosen.get("include_usage")))


@dataclass(frozen=True)
class Looked:
    """Which weights are asked for: layers by number or name, heads and rows by number; None for all."""

    asked: Asked
    layers: list[int] | list[str] | None
    heads: list[int] | None
    rows: list[int] | None


def attention(found: dict[str, Any], limits: Limits) -> Looked:
    given = _Fields(found, ATTENTION_FIELDS, limits)
    given.text("user", None)
    prompts = given.prompts()
    if len(prompts) != 1:
        raise Refused(f"prompt: {len(prompts)} of them; weights are given of one at a time", "prompt")
    layers = given.found.get("layers")
    if isinstance(layers, list) and layers and all(isinstance(one, str) and 0 < len(one) <= STOP for one in layers[:PROMPTS]):
        chosen: list[int] | list[str] | None = [str(one) for one in given.several("layers", layers)]
    else:
        chosen = given.numbers("layers")
    return Looked(Asked(prompts, given.options()), chosen, given.numbers("heads"), given.numbers("rows"))


def fits(prompt: int, options: Options, limits: Limits) -> None:
    """A prompt of so many tokens with its answer must fit."""
    if prompt + options.most > limits.length:
        raise Refused(
            f"this model reads at most {limits.length} tokens; the prompt has {prompt}, and max_tokens asks for {options.most} more",
            "prompt" if prompt > limits.length else "max_tokens",
            code="context_length_exceeded",
        )


def scores(prompt: int, options: Options) -> int:
    """Log-probabilities that the answers to a prompt of so many tokens may hold."""
    if options.alternatives is None:
        return 0
    return options.copies * (options.most + prompt * options.echo) * (1 + options.alternatives)


class _Fields:
    """The fields of a body, taken out one by one. null is as good as absent."""

    def __init__(self, found: dict[str, Any], known: Iterable[str], limits: Limits):
        self.found, self.limits, known = found, limits, list(known)
        for name in found:
            if name not in known:
                near = difflib.get_close_matches(name[:STOP], known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise Refused(f"{_short(name)}: no such argument{hint}", name[:64], code="unknown_argument")
        model = self.text("model", limits.name)
        if model != limits.name:
            raise Refused(
                f"no model is called {_short(model)}; this server has {limits.name!r}", "model", status=404, code="model_not_found"
            )

    def text(self, name: str, default: str | None) -> str | None:
        value = self.found.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def flag(self, name: str) -> bool:
        value = self.found.get(name)
        if value is not None and type(value) is not bool:
            raise self._wrong(name, "true or false")
        return bool(value)

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        value = self.found.get(name)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.found.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not low <= value <= high:
            raise self._wrong(name, f"a number from {low} to {high}")
        return float(value)

    def several(self, name: str, value: list[Any]) -> list[Any]:
        if len(value) > PROMPTS:
            raise Refused(f"{name}: {len(value)} of them; at most {PROMPTS}", name)
        return value

    def numbers(self, name: str) -> list[int] | None:
        value = self.found.get(name)
        if value is None:
            return None
        high = self.limits.length
        few = self.several(name, value) if isinstance(value, list) else []
        if not few or not all(type(one) is int and -high <= one < high for one in few):
            raise self._wrong(name, "a list of whole numbers, which count from the end if negative")
        return list(dict.fromkeys(few))

    def options(self, **more: Any) -> Options:
        """How to go on: what all routes that write have in common."""
        top_p = self.number("top_p", 1.0, 0, 1)
        sampling = {
            "temperature": self.number("temperature", 1.0, 0, 2),
            "top_p": max(top_p, 1e-9),  # 0 keeps the likeliest token
            "top_k": max(0, self.whole("top_k", 0, -1, self.limits.vocab)),  # -1 is how some say all
            "min_p": self.number("min_p", 0.0, 0, 1),
            "seed": self.whole("seed", secrets.randbits(63), -(2**63), 2**64 - 1),
        }
        try:
            return Options(
                most=self.whole("max_tokens", 16, 0, self.limits.length),
                sampling=Sampling(**sampling),  # type: ignore[arg-type]
                stops=self._stops(),
                bias=self._bias(),
                presence=self.number("presence_penalty", 0.0, -2, 2),
                frequency=self.number("frequency_penalty", 0.0, -2, 2),
                **more,
            )
        except NotSupported as wrong:
            raise Refused(str(wrong)) from None

    def prompts(self) -> list[str | list[int]]:
        value = self.found.get("prompt")
        if value is None:
            return [""]
        if isinstance(value, str):
            return [self._prompt(value)]
        if not isinstance(value, list) or not value:
            raise self._wrong("prompt", "a string, a list of strings, a list of tokens, or a list of such lists")
        if type(value[0]) is int:
            return [self._prompt(value)]
        if len(value) > self.limits.prompts:
            raise Refused(f"prompt: {len(value)} of them in one request; at most {self.limits.prompts}", "prompt")
        kind = type(value[0])
        return [self._prompt(one) if type(one) is kind else self._prompt(None) for one in value]

    def _prompt(self, value: Any) -> str | list[int]:
        if isinstance(value, str):
            if len(value) > CHARACTERS * self.limits.length:
                raise Refused(
                    f"prompt: {len(value)} characters; this model reads {self.limits.length} tokens",
                    "prompt",
                    code="context_length_exceeded",
                )
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Refused("prompt: holds half a surrogate pair, which is not text", "prompt") from None
            return value
        if not isinstance(value, list) or not value:
            raise self._wrong("prompt", "strings, or lists of at least one token")
        if len(value) > self.limits.length:
            raise Refused(
                f"prompt: {len(value)} tokens; this model reads at most {self.limits.length}", "prompt", code="context_length_exceeded"
            )
        for token in value:
            if type(token) is not int or not 0 <= token < self.limits.vocab:
                raise Refused(f"prompt: {_short(token)} is no token; they are 0 to {self.limits.vocab - 1}", "prompt")
        return value

    def _stops(self) -> tuple[str, ...]:
        value = self.found.get("stop")
        strings = [value] if isinstance(value, str) else value
        if strings is None:
            return ()
        if not isinstance(strings, list) or len(strings) > STOPS or not all(isinstance(s, str) and 0 < len(s) <= STOP for s in strings):
            raise Refused(f"stop: expected a string or at most {STOPS} of them, each of 1 to {STOP} characters", "stop")
        return tuple(strings)

    def _bias(self) -> dict[int, float]:
        value = self.found.get("logit_bias")
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > BIASES:
            raise Refused(f"logit_bias: expected an object of at most {BIASES} tokens with numbers from -100 to 100", "logit_bias")
        found: dict[int, float] = {}
        for key, bias in value.items():
            token = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else -1
            if not 0 <= token < self.limits.vocab:
                raise Refused(f"logit_bias: {_short(key)} is no token; they are 0 to {self.limits.vocab - 1}", "logit_bias")
            if type(bias) not in (int, float) or not -100 <= bias <= 100:
                raise Refused(f"logit_bias: {_short(bias)} for token {token}; expected a number from -100 to 100", "logit_bias")
            found[token] = float(bias)
        return found

    def _wrong(self, name: str, expected: str) -> Refused:
        return Refused(f"{name}: {_short(self.found.get(name))}; expected {expected}", name)


def _short(value: Any, most: int = 40) -> str:
    """A value as it was given, cut: messages go to logs and terminals."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        said = "a very large number" if (isinstance(value, int) and abs(value) > 10**most) or not math.isfinite(value) else str(value)
    else:
        try:
            said = json.dumps(value[: 2 * most] if isinstance(value, str | list) else value if not isinstance(value, dict) else "an object")
        except RecursionError:  # it could just be read
            said = "something nested too deeply"
    return said if len(said) <= most else f"{said[:most]}…"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

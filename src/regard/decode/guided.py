"""Guided decoding: completions that match a JSON schema, a regular expression or one of several texts, whatever the model.

    grammar = Grammar.json_schema({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]})
    generate(model, tokenizer, "He is", GuidedOptions(grammar=grammar))[0][0].text       {"age":31}

At each step the tokens that the grammar does not allow get no probability; the model chooses among the others, and the end token is among
them only where the text is complete. The grammar is followed by `llguidance` (the extra `guided`), byte by byte, so tokens may span its parts.
JSON is written without white space between its parts. A completion that `max_tokens` cuts off matches the beginning of the grammar.

Nothing here imports PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .._extras import extra, lazy
from ..errors import NotSupported

if TYPE_CHECKING:
    import llguidance
    import numpy as np
    import numpy.typing as npt

    from ..data import Tokenizer
else:
    llguidance = lazy("guided", "llguidance")

LONGEST = 2**16  # characters of a grammar
KEPT = 16  # compiled grammars per tokenizer
COMPACT = {"whitespace_flexible": False}  # no white space, which a model could repeat for ever
CALL, CALL_END = "<tool_call>", "</tool_call>"  # around the call of a tool, as Hermes and Qwen write it


@dataclass(frozen=True)
class Grammar:
    """Grammar that a completion follows. Made by `json_schema`, `json_object`, `regex`, `choice` or `tools`; compiled when it is used.

    Args:
        source: grammar in the JSON form of llguidance.
    """

    source: str

    def __post_init__(self) -> None:
        if len(self.source) > LONGEST:
            raise NotSupported(f"a grammar of {len(self.source):,} characters; expected at most {LONGEST:,}")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Grammar:
        """JSON that is valid under a schema.

        Args:
            schema: JSON schema, or its text; references within it are followed, others refused.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as wrong:
                raise NotSupported(f"the JSON schema is not valid JSON: {wrong}") from wrong
        if not isinstance(schema, Mapping):
            raise NotSupported(f"a JSON schema is an object, got {type(schema).__name__}")
        return cls(_source(json_schema={**schema, "x-guidance": COMPACT}))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        r"""Text that a regular expression matches as a whole, in Rust's syntax: no look-around, no back references; \d, \w and \s are ASCII.

        Args:
            pattern: regular expression.
        """
        if len(pattern) > LONGEST:
            raise NotSupported(f"a regular expression of {len(pattern):,} characters; expected at most {LONGEST:,}")
        return cls(_source(lark_grammar=f"start: /{llguidance.regex_to_lark(pattern, 'dws')}/"))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of several texts.

        Args:
            texts: texts, none of them empty.
        """
        if not texts or not all(texts):
            raise NotSupported("choice: expected one or more texts, none of them empty")
        return cls(_source(lark_grammar="start: " + " | ".join(_literal(text) for text in texts)))

    @classmethod
    def tools(cls, parameters: Mapping[str, Mapping[str, Any] | None], required: bool) -> Grammar:
        """The call of a tool, `<tool_call>{"name":…,"arguments":{…}}</tool_call>`, or any text that does not begin with <.

        Args:
            parameters: JSON schema of the arguments of each tool, by its name; None: it takes none.
            required: a call, and no other text.
        """
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": dict(schema) if schema else NO_ARGUMENTS},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name, schema in parameters.items()
        ]
        body = json.dumps({"x-guidance": COMPACT, "anyOf": calls})
        text = "" if required else "/([^<](.|\\n)*)?/ | "
        return cls(_source(lark_grammar=f"start: {text}{_literal(CALL)} body {_literal(CALL_END)}\nbody: %json {body}\n"))


NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def _source(**grammar: Any) -> str:
    return json.dumps({"grammars": [grammar]})


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Guide:
    """Where a completion is in its grammar: which tokens may come next.

    Args:
        matcher: state of llguidance's parser.
        vocab_size: number of tokens of the model.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int):
        self._matcher, self.vocab_size = matcher, vocab_size
        self.stuck = False  # no token fits: the vocabulary lacks what the grammar wants, or it became too complex

    def copy(self) -> Guide:
        """Return one at the same point, which goes on by itself."""
        return Guide(self._matcher.deep_copy(), self.vocab_size)

    @property
    def complete(self) -> bool:
        """True if the text matches and nothing can follow."""
        return bool(self._matcher.is_stopped() and not self._matcher.is_error() and self._matcher.is_accepting())

    def allowed(self) -> npt.NDArray[np.bool_]:
        """The tokens that may come next, a boolean per token of the model."""
        import numpy as np  # not above: help pages read this file

        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self.vocab_size, bitorder="little").astype(bool)
        self.stuck = self._matcher.is_error() or not allowed.any()
        return allowed

    def add(self, token: int) -> None:
        """The next token was chosen.

        Args:
            token: its id, one that was allowed.
        """
        self.stuck = self.stuck or not self._matcher.consume_token(token)


class GrammarCompiler:
    """Compiles grammars for the tokens of one model.

    Args:
        tokenizer: tokenizer of the model.
        vocab_size: number of tokens of the model, which may exceed that of the tokenizer.
        eos_ids: tokens that end a completion.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]):
        surfaces = tokenizer.token_bytes()
        if surfaces is None:
            raise NotSupported(
                f"a grammar with a tokenizer of kind {tokenizer.kind}, whose tokens change the space around them; expected bpe, unigram, char or byte"
            )
        tokens = [*surfaces, *[b""] * (vocab_size - len(surfaces))][:vocab_size]
        self.vocab_size = vocab_size
        self._tokenizer = Vocabulary(tokens, eos_ids).tokenizer()
        self._compiled = lru_cache(KEPT)(self._compile)

    def compile(self, grammar: Grammar) -> Guide:
        """The beginning of a grammar; one that is not valid is refused with the reason.

        Args:
            grammar: grammar to compile.
        """
        return self._compiled(grammar).copy()

    def _compile(self, grammar: Grammar) -> Guide:
        guide = Guide(new_matcher(self._tokenizer, grammar.source), self.vocab_size)
        guide.allowed()
        if guide.stuck:
            raise NotSupported(
                "the grammar cannot begin: the tokenizer has no token for its first character, or it refers to itself without end"
            )
        return guide


class Vocabulary:
    """A vocabulary as llguidance reads it. Tokens without bytes, such as special ones, are part of no text.

    Args:
        tokens: bytes of each token.
        eos_ids: tokens that end a text; where there are none, one more that no model has stands for them.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], eos_ids: Collection[int]):
        self.tokens, self.eos_ids = [*tokens, b""], list(eos_ids) or [len(tokens)]
        self.eos_token_id = self.eos_ids[0]
        self.special_token_ids: list[int] = []
        self._ids = {token: number for number, token in enumerate(self.tokens) if token}

    def __call__(self, text: bytes | str) -> list[int]:
        """Token ids of a text; asked for only to find tokens that are forced, which are not used here."""
        data = text.encode() if isinstance(text, str) else text
        return [self._ids[data[n : n + 1]] for n in range(len(data)) if data[n : n + 1] in self._ids]

    def tokenizer(self) -> llguidance.LLTokenizer:
        """The vocabulary in llguidance's form."""
        with extra("guided"):
            from llguidance import LLTokenizer
        return LLTokenizer(self, eos_token=self.eos_ids, slices=[])  # type: ignore[arg-type]


def new_matcher(tokenizer: llguidance.LLTokenizer, source: str) -> llguidance.LLMatcher:
    """The beginning of a grammar; one that is not valid is refused with the reason.

    Args:
        tokenizer: tokenizer of llguidance.
        source: grammar in its JSON form.
    """
    with extra("guided"):
        from llguidance import LLMatcher, LLParserLimits
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if matcher.is_error():
        raise NotSupported(f"the grammar is refused: {' '.join(matcher.get_error().split())[:300]}")
    return matcher

"""Chat: messages to a prompt, by the template that comes with a tokenizer.

A template is code from a model's directory, so it runs in Jinja's sandbox: no attributes that begin with an underscore, no files, no changes
to what it is given. Its output is limited, and so are the operators that make large values of small ones.

A model without a template gets a plain one, in which every message is a paragraph after the name of its role. Such a model continues a
conversation rather than answers, so a completion also ends where the user would speak again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..data import HFTokenizer
from ..decode import PromptEncoder
from ..errors import BadFile
from .responses import ApiError

PLAIN = "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}Assistant:"
PLAIN_STOPS = ("\n\nUser:", "\nUser:")
MAX_TEMPLATE = 2**18  # characters
MAX_SIZE = 2**22  # characters, of a prompt and of every value on the way to it


class Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, str | list | tuple) else abs(side) if isinstance(side, int) else 1 for side in (left, right)]
        if operator == "**" or (operator == "%" and isinstance(left, str)) or (operator == "*" and sizes[0] * sizes[1] > MAX_SIZE):
            raise jinja2.TemplateError(f"{operator}: not supported in templates, or of values too large")
        found = super().call_binop(context, operator, left, right)
        if isinstance(found, str | list) and len(found) > MAX_SIZE:
            raise jinja2.TemplateError(f"{operator}: a value of more than {MAX_SIZE} elements")
        return found


class ChatTemplate:
    """Turns messages into the ids of a prompt. `stop` are stop strings that belong to the template."""

    def __init__(self, encoder: PromptEncoder):
        self.encoder = encoder
        tokenizer = encoder.tokenizer
        given = tokenizer.chat_template if isinstance(tokenizer, HFTokenizer) else None
        self.stop = PLAIN_STOPS if given is None else ()
        self._own = given is not None
        self._tokens = (
            {f"{role}_token": tokenizer.vocabulary[n] for role, n in tokenizer.roles.items()} if isinstance(tokenizer, HFTokenizer) else {}
        )
        environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _to_json
        del environment.globals["lipsum"]  # Jinja's own; it writes as much text as it is asked for
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            if given is not None and len(given) > MAX_TEMPLATE:
                raise BadFile(f"the chat template has {len(given)} characters; expected at most {MAX_TEMPLATE}")
            self._template = environment.from_string(PLAIN if given is None else given)
        except (jinja2.TemplateError, RecursionError) as wrong:
            raise BadFile(f"the chat template of the tokenizer is not valid Jinja: {wrong}") from wrong

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt as text, which ends where the assistant is to speak."""
        text, size = [], 0
        try:
            for piece in self._template.generate(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._tokens
            ):
                text.append(piece)
                size += len(piece)
                if size > MAX_SIZE:
                    raise ApiError(f"messages: the prompt is longer than {MAX_SIZE} characters", "messages")
        except ApiError:
            raise
        except Exception as wrong:  # whatever code in a template raises
            raise ApiError(
                f"messages: the model's chat template refuses them: {type(wrong).__name__}: {str(wrong)[:200]}", "messages"
            ) from None
        return "".join(text)

    def encode(self, text: str) -> list[int]:
        """A template of the model writes its special tokens itself; before the plain one come those of any prompt."""
        return self.encoder.tokenizer.encode(text) if self._own else self.encoder.encode(text)[0]


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent if indent is None else min(indent, 8))


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(str(form)[:100])

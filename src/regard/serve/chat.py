"""Chat: messages to a prompt, by the template that comes with a tokenizer.

A template is code from a model's directory: it is rendered in Jinja's sandbox, in a process of its own with limits on memory and time.

A model without a template gets a plain form, in which every message is a paragraph after the name of its role. Such a model continues a
conversation rather than answers, so a completion also ends where the user would speak again.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..compare.process import Child
from ..decode import PromptEncoder
from ..decode.guided import CALL, CALL_END
from ..errors import BadFile, ChildFailed
from .responses import ApiError

PLAIN_STOPS = ("\n\nUser:", "\nUser:")
MAX_TEMPLATE = 2**18  # characters
SECONDS = 10.0  # to compile a template, or to render it


class ChatTemplate:
    """Turns messages into the ids of a prompt. `stop` are stop strings that belong to the template."""

    def __init__(self, encoder: PromptEncoder):
        self.encoder = encoder
        tokenizer = encoder.tokenizer
        self._template = tokenizer.chat_template
        self.stop = PLAIN_STOPS if self._template is None else ()
        if self._template is None:
            return
        if len(self._template) > MAX_TEMPLATE:
            raise BadFile(f"the chat template has {len(self._template)} characters; expected at most {MAX_TEMPLATE}")
        self._tokens = {f"{role}_token": tokenizer.vocabulary[n] for role, n in tokenizer.roles.items()}
        self._child, self._lock = Child(program=Path(__file__).with_name("templates.py")), threading.Lock()
        weakref.finalize(self, self._child.close)
        try:
            self._child.call("check", SECONDS, template=self._template)
        except ChildFailed as wrong:
            raise BadFile(f"the chat template of the tokenizer is not valid Jinja: {wrong}") from wrong

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt as text, which ends where the assistant is to speak."""
        if self._template is None:
            given = [{"role": "system", "content": _description(tools)}] * bool(tools) + list(messages)
            return "".join(f"{message['role'].capitalize()}: {_text(message)}\n\n" for message in given) + "Assistant:"
        asked = {
            "template": self._template,
            "messages": [dict(message) for message in messages],
            "tokens": self._tokens,
            "tools": list(tools),
        }
        try:
            with self._lock:
                text: str = self._child.call("render", SECONDS, **asked)
        except ChildFailed as wrong:
            raise ApiError(f"messages: the model's chat template refuses them: {wrong}", "messages") from None
        return text

    def encode(self, text: str) -> list[int]:
        """A template of the model writes its special tokens itself; before the plain form come those of any prompt."""
        return self.encoder.encode(text)[0] if self._template is None else self.encoder.tokenizer.encode(text)


def _text(message: Mapping[str, Any]) -> str:
    """A message of the plain form; calls are written as the model writes them."""
    calls = (f"{CALL}{json.dumps(call['function'], ensure_ascii=False)}{CALL_END}" for call in message.get("tool_calls", ()))
    return "\n".join([*([message["content"]] if message["content"] else []), *calls])


def _description(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return f'To call a function, write {CALL}{{"name": …, "arguments": {{…}}}}{CALL_END}. Functions:\n{listed}'

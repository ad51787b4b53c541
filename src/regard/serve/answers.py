"""Answers in the shapes that OpenAI's clients read: text completions, whole and in pieces."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from ..data import Tokenizer
from ..decode import Row, Said
from ..decode.stops import BROKEN


def label(tokenizer: Tokenizer, token: int) -> str:
    """A token as text. Half a character is shown by its bytes, and what has no text by its name."""
    text = tokenizer.decode([token])
    if BROKEN in text:
        return f"bytes:{tokenizer.strings([token])[0]}"
    return text or (tokenizer.vocabulary[token] if token < len(tokenizer) else str(token))


class Answer:
    """One completion: its id, and the objects it is told by."""

    def __init__(self, model: str, tokenizer: Tokenizer, logprobs: bool):
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._about = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()), "model": model}

    def choice(self, index: int, text: str, said: Sequence[Said], finish: str | None) -> dict[str, Any]:
        return {"text": text, "index": index, "logprobs": self._told(said) if self._logprobs else None, "finish_reason": finish}

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self._about, "choices": choices, "usage": usage}

    def part(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._about, "choices": choices}

    def _told(self, said: Sequence[Said]) -> dict[str, Any]:
        def best(one: Said) -> dict[str, float] | None:
            if one.log_prob is None:
                return None
            found: dict[str, float] = {}
            for token, log_prob in (*one.likeliest, (one.id, one.log_prob)):  # the one taken is always there
                found.setdefault(label(self._tokenizer, token), log_prob)
            return found

        return {
            "tokens": [label(self._tokenizer, one.id) for one in said],
            "token_logprobs": [one.log_prob for one in said],
            "top_logprobs": [best(one) for one in said],
            "text_offset": [one.offset for one in said],
        }


def usage(rows: Sequence[Sequence[Row]]) -> dict[str, int]:
    """Tokens read, once a prompt, and tokens written, those of answers not shown too."""
    read, written = sum(len(some[0].request.prompt) for some in rows), sum(len(row.ids) for some in rows for row in some)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

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
    if token >= len(tokenizer):
        return str(token)  # models may have room for more tokens than there are
    text = tokenizer.decode([token])
    if BROKEN in text:
        return f"bytes:{tokenizer.strings([token])[0]}"
    return text or tokenizer.vocabulary[token]


class Answer:
    """One completion: its id, and the objects it is told by. `labels` remembers tokens as text from one completion to the next."""

    def __init__(self, model: str, tokenizer: Tokenizer, labels: dict[int, str], logprobs: bool):
        self._tokenizer, self._labels, self._logprobs = tokenizer, labels, logprobs
        self._about = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()), "model": model}

    def choice(self, index: int, text: str, said: Sequence[Said], finish: str | None, before: int) -> dict[str, Any]:
        """`before`: characters of a prompt that the text does not hold; offsets are told from the beginning of the prompt."""
        return {"text": text, "index": index, "logprobs": self._told(said, before) if self._logprobs else None, "finish_reason": finish}

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self._about, "choices": choices, "usage": usage}

    def part(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._about, "choices": choices}

    def _label(self, token: int) -> str:
        if token not in self._labels:
            self._labels[token] = label(self._tokenizer, token)
        return self._labels[token]

    def _told(self, said: Sequence[Said], before: int) -> dict[str, Any]:
        def best(one: Said) -> dict[str, float] | None:
            if one.log_prob is None:
                return None
            found: dict[str, float] = {}
            for token, log_prob in (*one.likeliest, (one.id, one.log_prob)):  # the one taken is always there
                found.setdefault(self._label(token), log_prob)
            return found

        return {
            "tokens": [self._label(one.id) for one in said],
            "token_logprobs": [one.log_prob for one in said],
            "top_logprobs": [best(one) for one in said],
            "text_offset": [before + one.offset for one in said],
        }


def usage(rows: Sequence[Sequence[Row]]) -> dict[str, int]:
    """Tokens read, once a prompt, and tokens written, those of answers not shown too."""
    read, written = sum(len(some[0].request.prompt) for some in rows), sum(len(row.ids) for some in rows for row in some)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

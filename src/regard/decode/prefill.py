"""Texts on their way into the engine's caches: prompts, and what is read again of a text that has filled the context."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..attention import State
from .requests import Completion


def context_start(length: int, context_length: int) -> int:
    """Position from which on tokens predict the next one, after a text of this length: between half and all of the context."""
    if length <= context_length:
        return 0
    dropped = context_length - context_length // 2
    return -(-(length - context_length) // dropped) * dropped


@dataclass(eq=False)
class Text:
    """Tokens to read and the completions that continue them: a prompt, or the newer half of a text that has filled the context."""

    ids: list[int]
    rows: list[Completion]

    @property
    def cancelled(self) -> bool:
        return all(row.cancelled for row in self.rows)


class Prefill:
    """Texts that are being read, the longest first."""

    def __init__(self, texts: list[Text]):
        self.texts = sorted(texts, key=lambda text: -len(text.ids))
        self.left = len(self.texts[0].ids)  # tokens still to read, of every text that has started; they end together
        self.started = 0
        self.state: State | None = None

    def without_cancelled(self, device: torch.device) -> Prefill | None:
        """The texts still wanted. If none of them has started, they need not wait for a longer one that left."""
        kept = [b for b, text in enumerate(self.texts) if not text.cancelled]
        if len(kept) == len(self.texts):
            return self
        texts, started = [self.texts[b] for b in kept], [b for b in kept if b < self.started]
        if not started:
            return Prefill(texts) if texts else None
        assert self.state is not None
        if len(started) < self.started:
            self.state, self.started = self.state.reorder(torch.tensor(started, device=device)), len(started)
        self.texts = texts
        return self

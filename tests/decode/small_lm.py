"""Small language models for tests: a recurrence, whose state is one vector per row, optionally with states that cannot be joined."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from regard.attention import State
from regard.errors import StateNotSupported
from regard.models import LanguageModel, LanguageModelConfig


class Vector(State):
    """One vector per row; the last few are kept so that the state can be rewound."""

    def __init__(self, h_BD: Tensor, joins: bool = True):
        super().__init__(len(h_BD))
        self.h_BD, self.joins, self.before = h_BD, joins, []

    def move(self, h_BD: Tensor) -> None:
        self.before, self.h_BD = [*self.before[-15:], self.h_BD], h_BD
        self.length += 1

    def reorder(self, rows: Tensor) -> Self:
        self.h_BD, self.before, self.batch = self.h_BD[rows], [h[rows] for h in self.before], len(rows)
        return self

    def join(self, other: Self) -> Self:
        if not self.joins:
            raise StateNotSupported("rows of this state cannot be joined")
        self.h_BD, self.before = torch.cat([self.h_BD, other.h_BD]), []
        self.batch = len(self.h_BD)
        return self

    def back(self, count: int) -> Self:
        if count > len(self.before):
            raise StateNotSupported(f"{count} tokens back; {len(self.before)} are kept")
        if count:
            self.h_BD, self.before = self.before[-count], self.before[:-count]
            self.length -= count
        return self


class Small(LanguageModel):
    """h ← tanh(W h + E[id]), logits U h: peaked enough that rounding changes no choice."""

    def __init__(self, vocab_size: int = 260, width: int = 24, length: int = 512, seed: int = 0, joins: bool = True):
        super().__init__()
        self.config, self.joins = LanguageModelConfig(vocab_size=vocab_size, context_length=length), joins
        make = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(vocab_size, width, generator=make))
        self.recurrent = nn.Parameter(1.2 * torch.randn(width, width, generator=make) / width**0.5)
        self.output = nn.Parameter(2 * torch.randn(vocab_size, width, generator=make))
        self.eval()

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        state = self.start(len(ids_BL)) if state is None else state
        assert isinstance(state, Vector) and state.batch == len(ids_BL)
        seen = []
        for ids_B in ids_BL.unbind(1):
            state.move(torch.tanh(state.h_BD @ self.recurrent.T + self.embedding[ids_B]))
            seen.append(state.h_BD)
        return torch.stack(seen, 1)

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.output, None

    def start(self, batch: int) -> Vector:
        return Vector(torch.zeros(batch, self.recurrent.shape[0]), self.joins)

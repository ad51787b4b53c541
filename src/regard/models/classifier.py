"""A classification head over a language model or an encoder, for texts or for single tokens.

an encoder        W · pooled(x) + b       the pooled vector of the text       W · x_t + b   each token
a language model  W · x_n + b             its last token, which has read all others
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from ..errors import NotSupported
from ..layers import Dropout
from ..patterns import Pattern
from ._encoder import TextEncoder
from ._language import LanguageModel
from ._model import AttentionChoice, Model


class Classifier(Model):
    """A language model or encoder with a classification head. Its config is that of its body."""

    def __init__(self, body: Model, labels: int, *, each: bool = False, dropout: float = 0.1):
        super().__init__()
        if not isinstance(body, LanguageModel | TextEncoder):
            raise NotSupported(f"{type(body).__name__} does not read a single text; expected a language model or an encoder")
        self.body, self.each, self.config = body, each, body.config
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(body.head()[0].shape[1], labels)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    @property
    def max_length(self) -> int:
        return self.body.max_length

    def with_attention(
        self, attention: AttentionChoice = None, *, pattern: Pattern | None = None, layers: Iterable[int] | None = None
    ) -> Self:
        """A copy whose body has another mechanism: see `Model.with_attention`."""
        model = deepcopy(self)
        model.body = self.body.with_attention(attention, pattern=pattern, layers=layers)
        model.config = model.body.config
        return model

    def features(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor | None = None) -> Tensor:
        """x_BLD of the body; a language model ignores segments."""
        return self.body.features(ids_BL) if isinstance(self.body, LanguageModel) else self.body.features(ids_BL, n_B, segment_BL)

    def scores(self, x_BLD: Tensor, n_B: Tensor) -> Tensor:
        """logits_BN per text, or logits_BLN per token, from the features of the body."""
        if not self.each:
            x_BLD = x_BLD[torch.arange(len(n_B)), n_B - 1] if isinstance(self.body, LanguageModel) else self.body.pooled(x_BLD)
        return self.output(self.dropout(x_BLD))

    def forward(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor | None = None) -> Tensor:
        """logits_BN, or logits_BLN."""
        return self.scores(self.features(ids_BL, n_B, segment_BL), n_B)

"""A reader with one more matrix, that names what was read: the text as a whole, or each of its tokens.

an encoder        W · pooled(x) + b       its one vector for all       W · x_t + b   each token
a language model  W · x_n + b             its last token, which has read all the others
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import NotSupported
from ..layers import Dropout
from ._language import LanguageModel, TextEncoder
from ._model import Model


class Labeller(Model):
    """Any language model or encoder, and scores of labels over it. Not a published system of its own: its config is that of its body."""

    def __init__(self, body: Model, labels: int, *, each: bool = False, dropout: float = 0.1):
        super().__init__()
        if not isinstance(body, LanguageModel | TextEncoder):
            raise NotSupported(f"{type(body).__name__} reads no single text; a language model or an encoder does")
        self.body, self.each, self.config = body, each, body.config
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(body.head()[0].shape[1], labels)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def features(self, ids_BL: Tensor, n_B: Tensor, kind_BL: Tensor | None = None) -> Tensor:
        """x_BLD of the body; a language model is not told of kinds."""
        return self.body.features(ids_BL) if isinstance(self.body, LanguageModel) else self.body.features(ids_BL, n_B, kind_BL)

    def head(self) -> tuple[Tensor, Tensor]:
        """weight_ND and bias_N of the output projection."""
        return self.output.weight, self.output.bias

    def scores(self, x_BLD: Tensor, n_B: Tensor) -> Tensor:
        """logits_BN of each text, or logits_BLN of each token, of the body's features."""
        if not self.each:
            x_BLD = x_BLD[torch.arange(len(n_B)), n_B - 1] if isinstance(self.body, LanguageModel) else self.body.pooled(x_BLD)
        return self.output(self.dropout(x_BLD))  # type: ignore[no-any-return]

    def forward(self, ids_BL: Tensor, n_B: Tensor, kind_BL: Tensor | None = None) -> Tensor:
        """logits_BN, or logits_BLN."""
        return self.scores(self.features(ids_BL, n_B, kind_BL), n_B)

r"""A recurrent language model: a hidden state updated token by token predicts the next one.

$$h_t = \mathrm{cell}(E[\mathrm{id}_t], h_{t-1}) \qquad p(\mathrm{id}_{t+1}) = \mathrm{softmax}(W h_t + b)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import State
from ..errors import BadConfig, StateNotSupported
from ..layers import Dropout
from ..layers.packing import Documents
from .language import LanguageModel, LanguageModelConfig
from .model import Depth, ModelFacts, Probability, Size, Sizes
from .recurrent import CELLS, Hidden, RecurrentStack, named
from .translator import Decoding


@dataclass(frozen=True, kw_only=True)
class RNNLMConfig(LanguageModelConfig):
    cell: str = "lstm"  # or "gru", "rnn"
    embedding: Size = 256  # width of the token embeddings
    width: Size = 256  # width of the model: features per token between layers
    depth: Depth = 2  # number of layers
    dropout: Probability = 0.0  # dropout rate
    tied: bool = False  # tied input and output embeddings; needs embedding = width

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("cell", CELLS)
        if self.tied and self.embedding != self.width:
            raise BadConfig(f"RNNLMConfig: tied=True with embedding={self.embedding} and width={self.width}; make them equal")


class RNNLM(LanguageModel):
    """Recurrent layers (RNN, GRU or LSTM) over token embeddings, and a softmax.

    Cost:    time O(L·W²) per layer, sequential over tokens; a state of fixed size, whatever the length.
    Use it:  as the baseline for attention; for endless streams on small machines.
    Avoid it: where distant tokens matter, and for training on long texts, over which nothing is parallel.
    Limits:  none in length. All memory is in h (and c).
    Paper:   Mikolov et al. 2010, "Recurrent neural network based language model", Interspeech. LSTM and dropout between layers:
             Zaremba, Sutskever & Vinyals 2014, arXiv:1409.2329. Tied: Press & Wolf 2016, arXiv:1608.05859.
    """

    facts = ModelFacts(name="rnn_lm", year=2010, title="Recurrent neural network based language model", paper="Interspeech 2010")
    Config = RNNLMConfig
    config: RNNLMConfig
    sizes: ClassVar[Sizes] = {  # the LSTMs for the Penn Treebank
        "zaremba-medium": RNNLMConfig(vocab_size=10_000, embedding=650, width=650, dropout=0.5),  # 19,780,400 parameters
        "zaremba-large": RNNLMConfig(vocab_size=10_000, embedding=1500, width=1500, dropout=0.65),  # 66,034,000, "66 million"
    }

    def _build(self) -> None:
        c = self.config
        self.token, self.dropout = nn.Embedding(c.vocab_size, c.embedding), Dropout(c.dropout)
        self.layers = RecurrentStack(c.cell, c.embedding, c.width, depth=c.depth, dropout=c.dropout)
        self.output = nn.Linear(c.width, c.vocab_size)
        nn.init.normal_(self.token.weight, std=c.embedding**-0.5)
        nn.init.zeros_(self.output.bias)
        if c.tied:
            self.output.weight = self.token.weight

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        self._check_ids(ids_BL, document_BL)
        x_BLE = self.dropout(self.token(ids_BL))
        if document_BL is not None:
            if state is not None:
                raise StateNotSupported("document_BL is for whole rows, not for decoding with a state; state.reset(rows) starts a document")
            rows = Documents.of(document_BL).rows
            h_BLW, _ = self.layers(rows.pad(x_BLE.reshape(1, -1, x_BLE.shape[-1])), self._zeros(rows.batch))
            h_BLW = rows.pack(h_BLW).view(*ids_BL.shape, -1)
        elif state is None:
            h_BLW, _ = self.layers(x_BLE, self._zeros(len(ids_BL)))
        else:
            assert isinstance(state, Decoding)
            h_BLW, hidden = self.layers(x_BLE, tuple(state.now.values()))
            state.move(ids_BL.shape[1], **named(hidden))
        return self.dropout(h_BLW)

    def start(self, batch: int) -> State:
        return Decoding(named(self._zeros(batch)), {})

    def _zeros(self, batch: int) -> Hidden:
        h = self.output.weight.new_zeros(batch, self.config.depth, self.config.width)
        return (h, torch.zeros_like(h)) if self.config.cell == "lstm" else (h,)

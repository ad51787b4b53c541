r"""A recurrent language model: a state goes along the text, one word at a time, and says what comes next.

$$h_t = \mathrm{cell}(E[\mathrm{id}_t], h_{t-1}) \qquad p(\mathrm{id}_{t+1}) = \mathrm{softmax}(W h_t + b)$$
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attention import State
from ..errors import BadConfig, StateNotSupported
from ..layers import Dropout
from ._documents import Documents
from ._language import LanguageModel, LanguageModelConfig
from ._model import ModelFacts
from ._recurrent import CELLS, Hidden, Stack, named
from ._translator import Decoding


@dataclass(frozen=True, kw_only=True)
class RNNLMConfig(LanguageModelConfig):
    cell: str = "lstm"  # or "gru", "rnn"
    embedding: int = 256
    width: int = 256
    depth: int = 2
    dropout: float = 0.0
    tied: bool = False  # one table for input and output; then embedding = width

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("cell", CELLS)
        if self.tied and self.embedding != self.width:
            raise BadConfig(
                f"RNNLMConfig: tied is one table for words of {self.embedding} and states of {self.width} features; make them equal"
            )


class RNNLM(LanguageModel):
    """Recurrent layers (RNN, GRU or LSTM) over word vectors, and a softmax.

    Cost:    time O(L·W²) a layer, one word after the other; a state of fixed size however long the text.
    Use it:  as the baseline attention is measured against; for endless streams on small machines.
    Avoid it: where far words matter, and for training on long texts: nothing is done in parallel along them.
    Limits:  none in length. All that is remembered must fit h (and c).
    Paper:   Mikolov et al. 2010, "Recurrent neural network based language model", Interspeech. LSTM and dropout between layers:
             Zaremba, Sutskever & Vinyals 2014, arXiv:1409.2329. Tied: Press & Wolf 2016, arXiv:1608.05859.
    """

    facts = ModelFacts(name="rnn_lm", year=2010, title="Recurrent neural network based language model", paper="Interspeech 2010")
    Config = RNNLMConfig
    config: RNNLMConfig

    def __init__(self, config: RNNLMConfig):
        super().__init__()
        c = self.config = config
        self.token, self.dropout = nn.Embedding(c.vocab, c.embedding), Dropout(c.dropout)
        self.layers = Stack(c.cell, c.embedding, c.width, depth=c.depth, dropout=c.dropout)
        self.output = nn.Linear(c.width, c.vocab)
        nn.init.normal_(self.token.weight, std=c.embedding**-0.5)
        nn.init.zeros_(self.output.bias)
        if c.tied:
            self.output.weight = self.token.weight

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        self.check(ids_BL, document_BL)
        x_BLE = self.dropout(self.token(ids_BL))
        if document_BL is not None:
            if state is not None:
                raise StateNotSupported("documents are told apart in whole rows; step by step let a row begin anew, with state.reset(rows)")
            rows = Documents.of(document_BL).rows
            h_BLW, _ = self.layers(rows.pad(x_BLE.reshape(1, -1, x_BLE.shape[-1])), self._nothing(rows.batch))
            h_BLW = rows.pack(h_BLW).view(*ids_BL.shape, -1)
        elif state is None:
            h_BLW, _ = self.layers(x_BLE, self._nothing(len(ids_BL)))
        else:
            assert isinstance(state, Decoding)
            h_BLW, hidden = self.layers(x_BLE, tuple(state.now.values()))
            state.move(ids_BL.shape[1], **named(hidden))
        return self.dropout(h_BLW)  # type: ignore[no-any-return]

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.output.weight, self.output.bias

    def begin(self, batch: int) -> State:
        return Decoding(named(self._nothing(batch)), {})

    def _nothing(self, batch: int) -> Hidden:
        h = self.output.weight.new_zeros(batch, self.config.depth, self.config.width)
        return (h, torch.zeros_like(h)) if self.config.cell == "lstm" else (h,)


def zaremba_medium(vocab: int = 10_000) -> RNNLMConfig:
    """The paper's medium LSTM for the Penn Treebank: 19,780,400 parameters."""
    return RNNLMConfig(vocab=vocab, embedding=650, width=650, dropout=0.5)


def zaremba_large(vocab: int = 10_000) -> RNNLMConfig:
    """The paper's large LSTM: 66,034,000 parameters, "66 million"."""
    return RNNLMConfig(vocab=vocab, embedding=1500, width=1500, dropout=0.65)

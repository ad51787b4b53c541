r"""The whole source in one vector: an encoder reads it, a decoder unfolds it. The baseline that attention was made to beat.

$$v = h_M, \quad h_j = \mathrm{RNN}(E x_j, h_{j-1}) \qquad s_0 = v, \quad s_t = \mathrm{RNN}([E y_{t-1}; v], s_{t-1}) \qquad
  p(y_t) = \mathrm{softmax}(W_o s_t + b)$$
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attention import State
from ..layers import Dropout
from ._model import ModelFacts, Step
from ._recurrent import CELLS, Encoder, Hidden, Stack, halved, named
from ._translator import Decoding, Translator, TranslatorConfig


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(TranslatorConfig):
    embedding: int = 256
    width: int = 256  # of the decoder; each direction of a bidirectional encoder has half of it
    depth: int = 2
    cell: str = "lstm"  # rnn, gru or lstm
    bidirectional: bool = False
    reverse_source: bool = True  # the first word read last: then the first word to write is near
    feed_thought: bool = True  # v enters every step (Cho), not the first alone (Sutskever)
    dropout: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("cell", CELLS)
        halved(type(self).__name__, self.width, self.bidirectional)


def seq2seq_paper(source_vocab: int = 160_000, target_vocab: int = 80_000) -> Seq2SeqConfig:
    """Sutskever 2014: 4 layers of 1000, 384 million parameters."""
    return Seq2SeqConfig(
        source_vocab=source_vocab, target_vocab=target_vocab, embedding=1000, width=1000, depth=4, feed_thought=False, dropout=0.0
    )


class Seq2Seq(Translator):
    """A recurrent encoder and decoder with one vector, the thought, between them.

    Cost:    time O((M + L)·W²), a step after the other; what passes from source to target is W numbers a layer, however long.
    Use it:  as the baseline, and for short inputs.
    Avoid it: for sentences of more than some ten words: quality falls with the length.
    Limits:  no weights to look at: `step` gives None.
    Paper:   Sutskever, Vinyals & Le 2014, "Sequence to sequence learning with neural networks", arXiv:1409.3215; the
             thought in every step: Cho et al. 2014, arXiv:1406.1078.
    We differ: PyTorch's cells; recurrent matrices begin orthogonal and forget gates at one, the paper draws all from ±0.08.
             In a bidirectional encoder each direction has half the width.
    """

    facts = ModelFacts(name="seq2seq", year=2014, title="Sequence to sequence learning with neural networks", paper="arXiv:1409.3215")
    Config = Seq2SeqConfig
    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        c = self.config = config
        one_way = halved(type(c).__name__, c.width, c.bidirectional)
        self.encoder = Encoder(
            c.cell, c.source_vocab, c.embedding, one_way, depth=c.depth, both=c.bidirectional, backwards=c.reverse_source, dropout=c.dropout
        )
        self.token, self.dropout = nn.Embedding(c.target_vocab, c.embedding), Dropout(c.dropout)
        self.decoder = Stack(c.cell, c.embedding + (c.width if c.feed_thought else 0), c.width, depth=c.depth, dropout=c.dropout)
        self.output = nn.Linear(c.width, c.target_vocab)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        self.check(source_BM, source_n_B, target_BL)
        thought = self.encoder(source_BM, source_n_B)[1]
        h_BLW, _ = self.decoder(self._inputs(target_BL, thought[0][:, -1]), thought)
        return self.dropout(h_BLW)  # type: ignore[no-any-return]

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.output.weight, self.output.bias

    def begin(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        thought: Hidden = self.encoder(source_BM, source_n_B)[1]
        return Decoding(named(thought), {"thought": thought[0][:, -1]})

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        assert isinstance(state, Decoding)
        h_B1W, hidden = self.decoder(self._inputs(token_B[:, None], state.fixed["thought"]), tuple(state.now.values()))
        state.move(**named(hidden))
        return Step(self.logits(self.dropout(h_B1W[:, 0])), None)

    def _inputs(self, target_BL: Tensor, thought_BW: Tensor) -> Tensor:
        x_BLE: Tensor = self.dropout(self.token(target_BL))
        if not self.config.feed_thought:
            return x_BLE
        return torch.cat([x_BLE, thought_BW[:, None].expand(-1, x_BLE.shape[1], -1)], -1)

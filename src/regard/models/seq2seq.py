r"""An encoder compresses the source into one vector, from which a decoder generates: the baseline that attention was invented to beat.

$$v = h_M, \quad h_j = \mathrm{RNN}(E x_j, h_{j-1}) \qquad s_0 = v, \quad s_t = \mathrm{RNN}([E y_{t-1}; v], s_{t-1}) \qquad
  p(y_t) = \mathrm{softmax}(W_o s_t + b)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import State
from .model import ModelFacts, Sizes
from .recurrent import Hidden, RecurrentConfig, RecurrentStack, RecurrentTranslator, named
from .translator import Decoding


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(RecurrentConfig):
    feed_thought: bool = True  # feed v to every step (Cho), not only to the first (Sutskever)


# Sutskever 2014: 4 layers of 1000, 384 million parameters.
PAPER = Seq2SeqConfig(
    source_vocab_size=160_000, target_vocab_size=80_000, embedding=1000, width=1000, depth=4, feed_thought=False, dropout=0.0
)


class Seq2Seq(RecurrentTranslator):
    """A recurrent encoder and decoder with one vector, the thought vector, between them.

    Cost:    time O((M + L)·W²), sequential; the decoder gets W numbers per layer from the source, whatever its length.
    Use it:  as the baseline, and for short inputs.
    Avoid it: for sentences of more than about ten words: quality falls with the length.
    Limits:  no attention weights: `step` gives None.
    Paper:   Sutskever, Vinyals & Le 2014, "Sequence to sequence learning with neural networks", arXiv:1409.3215; the
             thought in every step: Cho et al. 2014, arXiv:1406.1078.
    We differ: PyTorch's cells; recurrent matrices are initialised orthogonal and forget gates at one, the paper draws all from
             ±0.08. Each direction of a bidirectional encoder has half the width.
    """

    facts = ModelFacts(name="seq2seq", year=2014, title="Sequence to sequence learning with neural networks", paper="arXiv:1409.3215")
    Config = Seq2SeqConfig
    config: Seq2SeqConfig
    sizes: ClassVar[Sizes] = {"seq2seq-paper": PAPER}

    def _build(self) -> None:
        super()._build()
        c = self.config
        self.decoder = RecurrentStack(c.cell, c.embedding + (c.width if c.feed_thought else 0), c.width, depth=c.depth, dropout=c.dropout)
        self.output = nn.Linear(c.width, c.target_vocab_size)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        self.check(source_BM, source_n_B, target_BL)
        thought = self.encoder(source_BM, source_n_B)[1]
        h_BLW, _ = self.decoder(self._inputs(target_BL, thought[0][:, -1]), thought)
        return self.dropout(h_BLW)

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        thought: Hidden = self.encoder(source_BM, source_n_B)[1]
        return Decoding(named(thought), {"thought": thought[0][:, -1]})

    def step_features(self, token_B: Tensor, state: State, want_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        assert isinstance(state, Decoding)
        h_B1W, hidden = self.decoder(self._inputs(token_B[:, None], state.fixed["thought"]), tuple(state.now.values()))
        state.move(**named(hidden))
        return self.dropout(h_B1W[:, 0]), None

    def _inputs(self, target_BL: Tensor, thought_BW: Tensor) -> Tensor:
        x_BLE: Tensor = self.dropout(self.token(target_BL))
        if not self.config.feed_thought:
            return x_BLE
        return torch.cat([x_BLE, thought_BW[:, None].expand(-1, x_BLE.shape[1], -1)], -1)

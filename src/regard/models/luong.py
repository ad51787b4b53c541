r"""Attention after the decoder's step, with simpler scores, windows, and the last look fed back in.

$$h_t = \mathrm{LSTM}([E y_{t-1}; \tilde h_{t-1}], h_{t-1}) \qquad c_t = \mathrm{attention}(h_t, \bar h, \bar h) \qquad
  \tilde h_t = \tanh(W_c [c_t; h_t]) \qquad p(y_t) = \mathrm{softmax}(W_s \tilde h_t)$$

Feeding h̃ back tells the decoder where it has looked, and makes it sequential. Without it attention is done for all t at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attention import Attention, LocalMonotonicAttention, LocalPredictiveAttention, LocalPredictiveGeneralAttention, State
from ..layers import Dropout
from ..layers.multihead import weights_now
from ..patterns import Pattern, lengths
from ._model import ModelFacts, Step, mechanism
from ._recurrent import CELLS, GATES, Encoder, Hidden, Stack, halved, named
from ._translator import Decoding, Translator, TranslatorConfig


@dataclass(frozen=True, kw_only=True)
class LuongConfig(TranslatorConfig):
    embedding: int = 256
    width: int = 256  # of the decoder; each direction of a bidirectional encoder has half of it
    depth: int = 2
    cell: str = "lstm"  # rnn, gru or lstm
    # dot, general, concat, location, local_monotonic, local_predictive, local_predictive_general: the paper's; or another
    attention: str = "general"
    feeding: bool = True
    bidirectional: bool = False
    reverse_source: bool = True
    radius: int = 10  # of the local ones: the paper's D
    length: int = 512  # longest source, for mechanisms that must know
    dropout: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("cell", CELLS)
        halved(type(self).__name__, self.width, self.bidirectional)
        mechanism(self.attention)


def luong_paper(source_vocab: int = 50_000, target_vocab: int = 50_000) -> LuongConfig:
    """Luong 2015: 4 layers of 1000."""
    return LuongConfig(source_vocab=source_vocab, target_vocab=target_vocab, embedding=1000, width=1000, depth=4)


class Luong(Translator):
    """A stacked LSTM reads, another writes, and each new state looks back before it speaks.

    Cost:    time O(L·M·W + (M + L)·W²); with feeding the target goes a step after the other, without in parallel.
    Use it:  to compare scores and windows under equal conditions.
    Avoid it: local_monotonic where the order of words changes; location for sources longer than in training.
    Limits:  keys are not projected once: concat does that at each step of feeding. local_monotonic scores by the dot product.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025.
    We differ: with a reversed source the states are put back in order before they are looked at, so positions are the
             reader's and local_monotonic is monotone. Recurrent matrices begin orthogonal and forget gates at one, the paper
             draws all from ±0.1. The output has a bias.
    """

    facts = ModelFacts(
        name="luong", year=2015, title="Effective approaches to attention-based neural machine translation", paper="arXiv:1508.04025"
    )
    Config = LuongConfig
    config: LuongConfig

    def __init__(self, config: LuongConfig):
        super().__init__()
        c = self.config = config
        one_way = halved(type(c).__name__, c.width, c.bidirectional)
        self.encoder = Encoder(
            c.cell, c.source_vocab, c.embedding, one_way, depth=c.depth, both=c.bidirectional, backwards=c.reverse_source, dropout=c.dropout
        )
        self.token, self.dropout = nn.Embedding(c.target_vocab, c.embedding), Dropout(c.dropout)
        self.decoder = Stack(c.cell, c.embedding, c.width, depth=c.depth, dropout=c.dropout)
        # the part of the first layer's matrix that reads h̃: apart from the token's, which needs no waiting
        self.feed = nn.Linear(c.width, GATES[c.cell] * c.width, bias=False) if c.feeding else None
        self.attention = _attention(c)
        self.combine = nn.Linear(2 * c.width, c.width, bias=False)  # W_c
        self.output = nn.Linear(c.width, c.target_vocab)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        self.check(source_BM, source_n_B, target_BL)
        memory_BMW, hidden = self.encoder(source_BM, source_n_B)
        x_BLE, seen = self.dropout(self.token(target_BL)), lengths(source_n_B)
        if self.feed is None:
            h_BLW, _ = self.decoder(x_BLE, hidden)
            return self.dropout(self._look(h_BLW, memory_BMW, seen, None))  # type: ignore[no-any-return]
        looking, made_BW, all_BLW = self.attention.start_over_memory(len(source_BM)), torch.zeros_like(hidden[0][:, -1]), []
        for gates_BG in self.decoder.entrance(x_BLE).unbind(1):
            h_BW, hidden = self.decoder.step(gates_BG + self.feed(made_BW), hidden)
            made_BW = self._look(h_BW[:, None], memory_BMW, seen, looking)[:, 0]
            all_BLW.append(made_BW)
        return self.dropout(torch.stack(all_BLW, 1))  # type: ignore[no-any-return]

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.output.weight, self.output.bias

    def begin(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        memory_BMW, hidden = self.encoder(source_BM, source_n_B)
        now = {"made": torch.zeros_like(hidden[0][:, -1])} | named(hidden)
        return Decoding(now, {"memory": memory_BMW, "n": source_n_B}, self.attention.start_over_memory(len(source_BM)))

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        assert isinstance(state, Decoding)
        made_BW, *old = state.now.values()
        gates_BG = self.decoder.entrance(self.dropout(self.token(token_B)))
        if self.feed is not None:
            gates_BG = gates_BG + self.feed(made_BW)
        hidden: Hidden
        h_BW, hidden = self.decoder.step(gates_BG, tuple(old))
        memory_BMW, seen, weights_BM = state.fixed["memory"], lengths(state.fixed["n"]), None
        if want_weights:
            q_BLHK, k_BMHK = h_BW[:, None, None].to(memory_BMW.dtype), memory_BMW.unsqueeze(2)
            weights_BM = weights_now(self.attention, q_BLHK, k_BMHK, seen, state=state.looking)[:, 0, 0]
        made_BW = self._look(h_BW[:, None], memory_BMW, seen, state.looking)[:, 0]
        state.move(made=made_BW, **named(hidden))
        return Step(self.logits(self.dropout(made_BW)), weights_BM)

    def _look(self, h_BLW: Tensor, memory_BMW: Tensor, seen: Pattern, looking: State | None) -> Tensor:
        """h̃ of each h: keys and values are the encoder's states as they are."""
        memory_BMHK = memory_BMW.unsqueeze(2)
        h_BLW = h_BLW.to(memory_BMW.dtype)  # under autocast the two may differ
        context_BLHV = self.attention(h_BLW.unsqueeze(2), memory_BMHK, memory_BMHK, seen, None, looking)
        return torch.tanh(self.combine(torch.cat([context_BLHV.squeeze(2), h_BLW], -1)))


def _attention(c: LuongConfig) -> Attention:
    """The mechanism of one head that compares states as they are; the local ones have a radius to set."""
    kind = mechanism(c.attention)
    if kind is LocalMonotonicAttention:
        return LocalMonotonicAttention(radius=c.radius)
    if kind in (LocalPredictiveAttention, LocalPredictiveGeneralAttention):
        return kind(width=c.width, radius=c.radius)
    return kind.sized(heads=1, width=c.width, length=c.length)

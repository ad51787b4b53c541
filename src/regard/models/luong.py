r"""Attention after the decoder's step, with simpler scores, local windows, and input feeding.

$$h_t = \mathrm{LSTM}([E y_{t-1}; \tilde h_{t-1}], h_{t-1}) \qquad c_t = \mathrm{attention}(h_t, \bar h, \bar h) \qquad
  \tilde h_t = \tanh(W_c [c_t; h_t]) \qquad p(y_t) = \mathrm{softmax}(W_s \tilde h_t)$$

Input feeding passes h̃ to the next step and makes the decoder sequential. Without it attention is computed for all t at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import Attention, LocalMonotonicAttention, LocalPredictiveAttention, LocalPredictiveGeneralAttention, State, find_mechanism
from ..patterns import Pattern, lengths
from .model import ModelFacts, Size, Sizes
from .recurrent import GATES, Hidden, RecurrentConfig, RecurrentStack, RecurrentTranslator, named
from .translator import Decoding


@dataclass(frozen=True, kw_only=True)
class LuongConfig(RecurrentConfig):
    # the paper's dot, general, concat, location, local_monotonic, local_predictive, local_predictive_general; or any other
    attention: str = "general"  # mechanism that attends to the source
    feeding: bool = True  # input feeding
    radius: Size = 10  # radius of local mechanisms: the paper's D

    def __post_init__(self) -> None:
        super().__post_init__()
        find_mechanism(self.attention)


# Luong 2015: 4 layers of 1000.
PAPER = LuongConfig(source_vocab_size=50_000, target_vocab_size=50_000, embedding=1000, width=1000, depth=4)


class Luong(RecurrentTranslator):
    """A stacked LSTM encoder and decoder; each decoder state attends to the encoder's states before the output.

    Cost:    time O(L·M·W + (M + L)·W²); the target is sequential with input feeding, parallel without.
    Use it:  to compare score functions and windows under equal conditions.
    Avoid it: local_monotonic where the order of words changes; location for sources longer than in training.
    Limits:  keys are not projected once for all steps: with input feeding concat projects them at each. local_monotonic uses dot products.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025.
    We differ: states of a reversed source are put back in order, so positions are those of the source and local_monotonic is
             monotonic. Recurrent matrices are initialised orthogonal and forget gates at one; the paper draws all from ±0.1.
             The output has a bias.
    """

    facts = ModelFacts(
        name="luong", year=2015, title="Effective approaches to attention-based neural machine translation", paper="arXiv:1508.04025"
    )
    Config = LuongConfig
    config: LuongConfig
    sizes: ClassVar[Sizes] = {"luong-paper": PAPER}

    def _build(self) -> None:
        super()._build()
        c = self.config
        self.decoder = RecurrentStack(c.cell, c.embedding, c.width, depth=c.depth, dropout=c.dropout)
        # the first layer's weights for h̃, separate from those for the token, which are applied to all steps at once
        self.feed = nn.Linear(c.width, GATES[c.cell] * c.width, bias=False) if c.feeding else None
        self.attention = _attention(c)
        self.combine = nn.Linear(2 * c.width, c.width, bias=False)  # W_c
        self.output = nn.Linear(c.width, c.target_vocab_size)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        self.check(source_BM, source_n_B, target_BL)
        memory_BMW, hidden = self.encoder(source_BM, source_n_B)
        x_BLE, allowed = self.dropout(self.token(target_BL)), lengths(source_n_B)
        if self.feed is None:
            h_BLW, _ = self.decoder(x_BLE, hidden)
            return self.dropout(self._attend(h_BLW, memory_BMW, allowed, None))
        attention_state, attentional_BW, all_BLW = self.attention.start_cross(len(source_BM)), torch.zeros_like(hidden[0][:, -1]), []
        for gates_BG in self.decoder.input_gates(x_BLE).unbind(1):
            h_BW, hidden = self.decoder.step(gates_BG + self.feed(attentional_BW), hidden)
            attentional_BW = self._attend(h_BW[:, None], memory_BMW, allowed, attention_state)[:, 0]
            all_BLW.append(attentional_BW)
        return self.dropout(torch.stack(all_BLW, 1))

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        memory_BMW, hidden = self.encoder(source_BM, source_n_B)
        now = {"attentional": torch.zeros_like(hidden[0][:, -1])} | named(hidden)
        return Decoding(now, {"memory": memory_BMW, "n": source_n_B}, self.attention.start_cross(len(source_BM)))

    def step_features(self, token_B: Tensor, state: State, want_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        assert isinstance(state, Decoding)
        attentional_BW, *old = state.now.values()
        gates_BG = self.decoder.input_gates(self.dropout(self.token(token_B)))
        if self.feed is not None:
            gates_BG = gates_BG + self.feed(attentional_BW)
        hidden: Hidden
        h_BW, hidden = self.decoder.step(gates_BG, tuple(old))
        memory_BMW, allowed, weights_BM = state.fixed["memory"], lengths(state.fixed["n"]), None
        if want_weights:
            q_BLHK, k_BMHK = h_BW[:, None, None].to(memory_BMW.dtype), memory_BMW.unsqueeze(2)
            weights_BM = self.attention.weights(q_BLHK, k_BMHK, allowed, state=state.attention_state)[:, 0, 0]
        attentional_BW = self._attend(h_BW[:, None], memory_BMW, allowed, state.attention_state)[:, 0]
        state.move(attentional=attentional_BW, **named(hidden))
        return self.dropout(attentional_BW), weights_BM

    def _attend(self, h_BLW: Tensor, memory_BMW: Tensor, allowed: Pattern, attention_state: State | None) -> Tensor:
        """h̃ of each h: keys and values are the encoder's states themselves."""
        memory_BMHK = memory_BMW.unsqueeze(2)
        h_BLW = h_BLW.to(memory_BMW.dtype)  # under autocast the two may differ
        context_BLHV = self.attention(h_BLW.unsqueeze(2), memory_BMHK, memory_BMHK, allowed, None, attention_state)
        return torch.tanh(self.combine(torch.cat([context_BLHV.squeeze(2), h_BLW], -1)))


def _attention(c: LuongConfig) -> Attention:
    """A single-head mechanism over unprojected states; the local ones take the radius."""
    kind = find_mechanism(c.attention)
    if kind is LocalMonotonicAttention:
        return LocalMonotonicAttention(radius=c.radius)
    if kind in (LocalPredictiveAttention, LocalPredictiveGeneralAttention):
        return kind(head_dim=c.width, radius=c.radius)
    return kind.sized(heads=1, head_dim=c.width, length=c.max_length)

r"""The first attention model: the decoder attends to one vector per source token before each output.

$$c_i = \sum_j \mathrm{softmax}_j\big(u^\top\tanh(W_a s_{i-1} + U_a h_j)\big)\, h_j \qquad h_j = [\overrightarrow{h}_j; \overleftarrow{h}_j]$$
$$(z, r) = σ(W e_i + U s_{i-1} + C c_i) \qquad \tilde s = \tanh(W_n e_i + U_n (r ⊙ s_{i-1}) + C_n c_i) \qquad
  s_i = (1 - z) ⊙ s_{i-1} + z ⊙ \tilde s$$
$$t_i = \mathrm{maxout}(U_o s_i + V_o e_i + C_o c_i) \qquad p(y_i) = \mathrm{softmax}(W_o t_i) \qquad e_i = E y_{i-1} \qquad
  s_0 = \tanh(W_s \overleftarrow{h}_1)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import State, find_mechanism
from ..layers import Dropout
from ..patterns import lengths
from .model import ModelFacts, Probability, Size, Sizes
from .recurrent import RecurrentEncoder
from .translator import Decoding, Translator, TranslatorConfig


@dataclass(frozen=True, kw_only=True)
class RNNsearchConfig(TranslatorConfig):
    embedding: Size = 256  # width of the token embeddings
    width: Size = 256  # units of the decoder, and of each direction of the encoder
    alignment: Size = 256  # hidden units of the additive score
    maxout: Size = 128  # maxout units before the output projection
    attention: str = "additive"  # mechanism that attends to the source
    bidirectional: bool = True  # read the source in both directions
    reset_after: bool = False  # apply r after the matmul with U, as in PyTorch; the paper applies it before
    output_state: str = "current"  # s_i, as in the paper's main text; "previous" is that of its appendix
    dropout: Probability = 0.2  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("output_state", ("current", "previous"))
        find_mechanism(self.attention)


# Bahdanau 2014: 1000 units, embeddings of 620, 500 maxout units.
PAPER = RNNsearchConfig(
    source_vocab_size=30_000, target_vocab_size=30_000, embedding=620, width=1000, alignment=1000, maxout=500, dropout=0.0
)


class RNNsearch(Translator):
    """A bidirectional GRU encoder and a GRU decoder with additive attention at each step.

    Cost:    time O(L·M·A + (M + L)·W²), sequential over the target; memory for training O(L·M·A).
    Use it:  for up to about a hundred words on little data, and to see alignments learned without labels.
    Avoid it: where training must be parallel over the target: each query depends on the previous state.
    Paper:   Bahdanau, Cho & Bengio 2014, "Neural machine translation by jointly learning to align and translate",
             arXiv:1409.0473, section 3 and appendix A.
    We differ: the encoder is PyTorch's GRU, whose reset gate acts after the matmul (the decoder's is the paper's). Any
             mechanism may replace the additive one. Recurrent matrices are initialised orthogonal, as in the paper; the rest
             by PyTorch's defaults, since N(0, 0.01²) and u = 0 need days.
    """

    facts = ModelFacts(
        name="rnnsearch", year=2014, title="Neural machine translation by jointly learning to align and translate", paper="arXiv:1409.0473"
    )
    Config = RNNsearchConfig
    config: RNNsearchConfig
    sizes: ClassVar[Sizes] = {"rnnsearch-paper": PAPER}

    def _build(self) -> None:
        c = self.config
        W, annotation = c.width, c.width * (1 + c.bidirectional)
        self.encoder = RecurrentEncoder("gru", c.source_vocab_size, c.embedding, W, both=c.bidirectional, dropout=c.dropout)
        self.token, self.dropout = nn.Embedding(c.target_vocab_size, c.embedding), Dropout(c.dropout)
        self.first = nn.Linear(W, W)  # W_s
        self.key = nn.Linear(annotation, c.alignment, bias=False)  # U_a
        self.query_and_gates = nn.Linear(W, c.alignment + 2 * W, bias=False)  # W_a over U of z and r: one matmul per step
        self.attention = find_mechanism(c.attention).sized(heads=1, head_dim=c.alignment, length=c.max_length)
        self.from_token = nn.Linear(c.embedding, 3 * W)  # W, for z, r and the candidate, in this order
        self.from_context = nn.Linear(annotation, 3 * W, bias=False)  # C
        self.recur = nn.Linear(W, W, bias=False)  # U_n
        self.deep = nn.Linear(W + c.embedding + annotation, 2 * c.maxout)  # U_o, V_o, C_o side by side
        self.output = nn.Linear(c.maxout, c.target_vocab_size)
        with torch.no_grad():
            for matrix in (*self.query_and_gates.weight[c.alignment :].chunk(2), self.recur.weight):
                nn.init.orthogonal_(matrix)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        self.check(source_BM, source_n_B, target_BL)
        fixed, s_BW = self._encode(source_BM, source_n_B)
        e_BLE, attention_state = self.dropout(self.token(target_BL)), self.attention.start_cross(len(source_BM))
        states, contexts = [s_BW], []
        for gates_BG in self.from_token(e_BLE).unbind(1):
            s_BW, context_BD, _ = self._advance(gates_BG, s_BW, fixed, attention_state)
            states.append(s_BW)
            contexts.append(context_BD)
        outputs = states[1:] if self.config.output_state == "current" else states[:-1]
        return self._maxout(torch.stack(outputs, 1), e_BLE, torch.stack(contexts, 1))

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        fixed, s_BW = self._encode(source_BM, source_n_B)
        return Decoding({"s": s_BW}, fixed, self.attention.start_cross(len(source_BM)))

    def step_features(self, token_B: Tensor, state: State, want_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        assert isinstance(state, Decoding)
        e_BE, old_BW, attention_state = self.dropout(self.token(token_B)), state.now["s"], state.attention_state
        s_BW, context_BD, weights_BM = self._advance(self.from_token(e_BE), old_BW, state.fixed, attention_state, want_weights)
        state.move(s=s_BW)
        x_BD = self._maxout(s_BW if self.config.output_state == "current" else old_BW, e_BE, context_BD)
        return x_BD, weights_BM

    def _encode(self, source_BM: Tensor, source_n_B: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Annotations with their keys (U_a h, computed once for all steps) and lengths; and the decoder's initial state."""
        h_BMD, (last_BND,) = self.encoder(source_BM, source_n_B)
        back_BW = last_BND[:, -1, -self.config.width :]  # the backward direction ends at the first token
        key_BMA = self.key(h_BMD)
        fixed = {"annotations": h_BMD.to(key_BMA.dtype), "keys": key_BMA, "n": source_n_B}  # under autocast their dtypes differ
        return fixed, torch.tanh(self.first(back_BW))

    def _advance(
        self, gates_BG: Tensor, s_BW: Tensor, fixed: dict[str, Tensor], attention_state: State | None, want_weights: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The next state, the context vector, and the attention weights if wanted; `gates_BG` is the token's part of the gates."""
        W, allowed = s_BW.shape[-1], lengths(fixed["n"])
        query_BA, from_state_BG = self.query_and_gates(s_BW).split((self.config.alignment, 2 * W), -1)
        q_BLHK, k_BMHK = query_BA[:, None, None], fixed["keys"].unsqueeze(2)
        weights_BM = self.attention.weights(q_BLHK, k_BMHK, allowed, state=attention_state)[:, 0, 0] if want_weights else None
        context_BD = self.attention(q_BLHK, k_BMHK, fixed["annotations"].unsqueeze(2), allowed, None, attention_state)[:, 0, 0]
        both_BG, new_BW = (gates_BG + self.from_context(context_BD)).split((2 * W, W), -1)
        z, r = torch.sigmoid(both_BG + from_state_BG).chunk(2, -1)
        recurrent = r * self.recur(s_BW) if self.config.reset_after else self.recur(r * s_BW)
        new_BW = torch.tanh(new_BW + recurrent)
        return s_BW + z * (new_BW - s_BW), context_BD, weights_BM

    def _maxout(self, s: Tensor, e: Tensor, context: Tensor) -> Tensor:
        pairs = self.deep(torch.cat([s, e, context], -1)).unflatten(-1, (-1, 2))
        return self.dropout(pairs.amax(-1))

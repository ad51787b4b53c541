r"""Every source word keeps a vector of its own, and before each output the decoder asks which of them it needs now.

$$c_i = \sum_j \mathrm{softmax}_j\big(u^\top\tanh(W_a s_{i-1} + U_a h_j)\big)\, h_j \qquad h_j = [\overrightarrow{h}_j; \overleftarrow{h}_j]$$
$$(z, r) = σ(W e_i + U s_{i-1} + C c_i) \qquad \tilde s = \tanh(W_n e_i + U_n (r ⊙ s_{i-1}) + C_n c_i) \qquad
  s_i = (1 - z) ⊙ s_{i-1} + z ⊙ \tilde s$$
$$t_i = \mathrm{maxout}(U_o s_i + V_o e_i + C_o c_i) \qquad p(y_i) = \mathrm{softmax}(W_o t_i) \qquad e_i = E y_{i-1} \qquad
  s_0 = \tanh(W_s \overleftarrow{h}_1)$$
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attention import State
from ..layers import Dropout
from ..layers.multihead import weights_now
from ..patterns import Pattern, lengths
from ._model import ModelFacts, Step, mechanism
from ._recurrent import Encoder
from ._translator import Decoding, Translator, TranslatorConfig


@dataclass(frozen=True, kw_only=True)
class RNNsearchConfig(TranslatorConfig):
    embedding: int = 256
    width: int = 256  # of the decoder, and of each direction of the encoder
    alignment: int = 256  # hidden units that compare s and h
    maxout: int = 128
    attention: str = "additive"
    bidirectional: bool = True
    reset_after: bool = False  # r acts after the product with U, as in PyTorch; the paper's acts before
    output_state: str = "current"  # s_i, as the paper's main text has it; "previous" is its appendix
    dropout: float = 0.2
    length: int = 512  # longest source, for mechanisms that must know

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("output_state", ("current", "previous"))
        mechanism(self.attention)


def rnnsearch_paper(source_vocab: int = 30_000, target_vocab: int = 30_000) -> RNNsearchConfig:
    """Bahdanau 2014: 1000 units, embeddings of 620, 500 maxout units."""
    return RNNsearchConfig(
        source_vocab=source_vocab, target_vocab=target_vocab, embedding=620, width=1000, alignment=1000, maxout=500, dropout=0.0
    )


class RNNsearch(Translator):
    """A bidirectional GRU reads, a GRU writes, and additive attention looks back at each step.

    Cost:    time O(L·M·A + (M + L)·W²), the target a step after the other; memory for training O(L·M·A).
    Use it:  for up to some hundred words on little data, and to see alignments learnt without labels.
    Avoid it: where training must be parallel over the target: the query needs the state before it.
    Paper:   Bahdanau, Cho & Bengio 2014, "Neural machine translation by jointly learning to align and translate",
             arXiv:1409.0473, section 3 and appendix A.
    We differ: the encoder is PyTorch's GRU, whose reset gate acts after the product (the decoder's is the paper's). Other
             mechanisms than the additive one may stand in its place. Recurrent matrices begin orthogonal, as there; the rest
             as PyTorch's layers do, since N(0, 0.01²) and u = 0 need days.
    """

    facts = ModelFacts(
        name="rnnsearch", year=2014, title="Neural machine translation by jointly learning to align and translate", paper="arXiv:1409.0473"
    )
    Config = RNNsearchConfig
    config: RNNsearchConfig

    def __init__(self, config: RNNsearchConfig):
        super().__init__()
        c = self.config = config
        W, annotation = c.width, c.width * (1 + c.bidirectional)
        self.encoder = Encoder("gru", c.source_vocab, c.embedding, W, both=c.bidirectional, dropout=c.dropout)
        self.token, self.dropout = nn.Embedding(c.target_vocab, c.embedding), Dropout(c.dropout)
        self.first = nn.Linear(W, W)  # W_s
        self.key = nn.Linear(annotation, c.alignment, bias=False)  # U_a
        self.query_and_gates = nn.Linear(W, c.alignment + 2 * W, bias=False)  # W_a over U of z and r: one product a step
        self.attention = mechanism(c.attention).sized(heads=1, width=c.alignment, length=c.length)
        self.from_token = nn.Linear(c.embedding, 3 * W)  # W, for z, r and the candidate, in this order
        self.from_context = nn.Linear(annotation, 3 * W, bias=False)  # C
        self.recur = nn.Linear(W, W, bias=False)  # U_n
        self.deep = nn.Linear(W + c.embedding + annotation, 2 * c.maxout)  # U_o, V_o, C_o side by side
        self.output = nn.Linear(c.maxout, c.target_vocab)
        with torch.no_grad():
            for matrix in (*self.query_and_gates.weight[c.alignment :].chunk(2), self.recur.weight):
                nn.init.orthogonal_(matrix)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        self.check(source_BM, source_n_B, target_BL)
        h_BMD, key_BMA, s_BW = self._encode(source_BM, source_n_B)
        e_BLE = self.dropout(self.token(target_BL))
        seen, looking = lengths(source_n_B), self.attention.start_over_memory(len(source_BM))
        states, contexts = [s_BW], []
        for gates_BG in self.from_token(e_BLE).unbind(1):
            s_BW, context_BD, _ = self._advance(gates_BG, s_BW, key_BMA, h_BMD, seen, looking)
            states.append(s_BW)
            contexts.append(context_BD)
        spoken = states[1:] if self.config.output_state == "current" else states[:-1]
        return self._speak(torch.stack(spoken, 1), e_BLE, torch.stack(contexts, 1))

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.output.weight, self.output.bias

    def begin(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        h_BMD, key_BMA, s_BW = self._encode(source_BM, source_n_B)
        fixed = {"annotations": h_BMD, "keys": key_BMA, "n": source_n_B}
        return Decoding({"s": s_BW}, fixed, self.attention.start_over_memory(len(source_BM)))

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        assert isinstance(state, Decoding)
        e_BE, old_BW, fixed = self.dropout(self.token(token_B)), state.now["s"], state.fixed
        s_BW, context_BD, weights_BM = self._advance(
            self.from_token(e_BE), old_BW, fixed["keys"], fixed["annotations"], lengths(fixed["n"]), state.looking, want_weights
        )
        state.move(s=s_BW)
        x_BD = self._speak(s_BW if self.config.output_state == "current" else old_BW, e_BE, context_BD)
        return Step(self.logits(x_BD), weights_BM)

    def _encode(self, source_BM: Tensor, source_n_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Annotations, their keys (U_a h, once for all steps), and the decoder's first state."""
        h_BMD, (last_BND,) = self.encoder(source_BM, source_n_B)
        back_BW = last_BND[:, -1, -self.config.width :]  # the way back ends at the first word
        key_BMA = self.key(h_BMD)
        return h_BMD.to(key_BMA.dtype), key_BMA, torch.tanh(self.first(back_BW))  # under autocast the two differ

    def _advance(
        self,
        gates_BG: Tensor,
        s_BW: Tensor,
        key_BMA: Tensor,
        h_BMD: Tensor,
        seen: Pattern,
        looking: State | None,
        want_weights: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The next state, what was seen on the way, and where; `gates_BG` is the token's part."""
        W = s_BW.shape[-1]
        query_BA, from_state_BG = self.query_and_gates(s_BW).split((self.config.alignment, 2 * W), -1)
        q_BLHK, k_BMHK = query_BA[:, None, None], key_BMA.unsqueeze(2)
        weights_BM = weights_now(self.attention, q_BLHK, k_BMHK, seen, state=looking)[:, 0, 0] if want_weights else None
        context_BD = self.attention(q_BLHK, k_BMHK, h_BMD.unsqueeze(2), seen, None, looking)[:, 0, 0]
        both_BG, new_BW = (gates_BG + self.from_context(context_BD)).split((2 * W, W), -1)
        z, r = torch.sigmoid(both_BG + from_state_BG).chunk(2, -1)
        recurrent = r * self.recur(s_BW) if self.config.reset_after else self.recur(r * s_BW)
        new_BW = torch.tanh(new_BW + recurrent)
        return s_BW + z * (new_BW - s_BW), context_BD, weights_BM

    def _speak(self, s: Tensor, e: Tensor, context: Tensor) -> Tensor:
        pairs = self.deep(torch.cat([s, e, context], -1)).unflatten(-1, (-1, 2))
        return self.dropout(pairs.amax(-1))  # type: ignore[no-any-return]

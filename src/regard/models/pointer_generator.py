r"""A recurrent summariser that copies words of the article by its attention, and remembers what it has attended to.

$$e_{ti} = v^\top\tanh(W_h h_i + W_s s_t + w_c\, cov_{ti} + b) \qquad a_t = \mathrm{softmax}(e_t) \qquad h^*_t = \sum_i a_{ti} h_i \qquad
  cov_t = \sum_{t' < t} a_{t'}$$
$$x_t = W[E y_{t-1}; h^*_{t-1}] \qquad s_t = \mathrm{LSTM}(x_t, s_{t-1}) \qquad P_{vocab} = \mathrm{softmax}\big(V'(V[s_t; h^*_t] + b) + b'\big)$$
$$p_{gen} = σ(w_{h^*}^\top h^*_t + w_s^\top s_t + w_x^\top x_t + b) \qquad P(w) = p_{gen} P_{vocab}(w) + (1 - p_{gen}) \sum_{i:\, x_i = w} a_{ti}$$

The coverage loss $λ \sum_t \sum_i \min(a_{ti}, cov_{ti})$ is added to $-\log P$ late in training (`tasks.summarization`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import State
from ..attention.helpers import float32_or_wider
from ..layers import Dropout
from .copying import CopyConfig, CopyModel, CopyOutputs, never
from .model import ModelFacts, Probability, Size, Sizes
from .recurrent import RecurrentEncoder, RecurrentStack
from .translator import Decoding


@dataclass(frozen=True, kw_only=True)
class PointerGeneratorConfig(CopyConfig):
    embedding: Size = 128  # width of the token embeddings
    width: Size = 256  # units of the decoder, and of each direction of the encoder
    coverage: bool = True  # the score sees the coverage so far: w_c
    dropout: Probability = 0.2  # dropout rate


# See 2017: 21,499,600 parameters, 1,153 for the pointer, 512 for coverage; here 3,072 more, as PyTorch's LSTM has two biases.
PAPER = PointerGeneratorConfig(vocab_size=50_000, embedding=128, width=256, dropout=0.0)


class PointerGenerator(CopyModel):
    """A bidirectional LSTM encoder and an LSTM decoder with additive attention, a pointer to the words it attends to, and coverage.

    Cost:    time O(L·M·W + (M + L)·W²), sequential over the target; memory for training O(L·M·W).
    Use it:  for summaries that repeat names and numbers of their article, and to see which word was copied from where.
    Avoid it: where training must be parallel over the target; pointer_transformer is.
    Paper:   See, Liu & Manning 2017, "Get to the point: summarization with pointer-generator networks", arXiv:1704.04368, section 2; the input
             x_t with the last context is in the authors' code only.
    We differ: the article ends in the end token, so an empty one has a word to attend to, and pointing at its end may end a summary. Dropout
             on the embeddings. Recurrent matrices are initialised orthogonal and forget gates at one, the rest by PyTorch's defaults.
    """

    facts = ModelFacts(
        name="pointer_generator",
        year=2017,
        title="Get to the point: summarization with pointer-generator networks",
        paper="arXiv:1704.04368",
    )
    Config = PointerGeneratorConfig
    config: PointerGeneratorConfig
    sizes: ClassVar[Sizes] = {"pointer-generator-paper": PAPER}

    def _build(self) -> None:
        c = self.config
        W, E = c.width, c.embedding
        self.encoder = RecurrentEncoder("lstm", c.vocab_size, E, W, both=True, dropout=c.dropout)  # its embeddings are the decoder's too
        self.dropout = Dropout(c.dropout)
        self.first = nn.ModuleDict({name: nn.Linear(2 * W, W) for name in ("h", "c")})
        self.from_token = nn.Linear(E, E)  # W of x_t, in two parts: tokens are known before the loop
        self.from_context = nn.Linear(2 * W, E, bias=False)
        self.decoder = RecurrentStack("lstm", E, W)
        self.key = nn.Linear(2 * W, 2 * W, bias=False)  # W_h
        self.query = nn.Linear(2 * W, 2 * W)  # W_s and b; s_t is [c; h] here and in p_gen, as in the authors' code
        self.covered = nn.Parameter(torch.zeros(2 * W)) if c.coverage else None  # w_c: at random it delays the alignment (LOG.md)
        self.score = nn.Linear(2 * W, 1, bias=False)  # v
        self.gate = nn.Linear(4 * W + E, 1) if c.pointer else None  # w_{h*}, w_s, w_x side by side
        self.deep = nn.Linear(3 * W, W)  # V
        self.output = nn.Linear(W, c.vocab_size)  # V'

    def outputs(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> CopyOutputs:
        self.check(source_BM, source_n_B, target_BL)
        state = self.start(source_BM, source_n_B)
        steps = [self._advance(x_BE, state) for x_BE in self._tokens(target_BL).unbind(1)]
        return self._outputs(*(torch.stack(parts, 1) for parts in zip(*steps, strict=True)))

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> Decoding:
        self.check(source_BM, source_n_B)
        h_BMD, last = self.encoder(self.embeddable(source_BM), source_n_B)
        key_BMD = self.key(h_BMD)
        now = {name: torch.relu(self.first[name](x_B1D)) for name, x_B1D in zip(("h", "c"), last, strict=True)}
        now |= {"context": torch.zeros_like(h_BMD[:, 0]), "coverage": torch.zeros_like(float32_or_wider(h_BMD[..., 0]))}
        real_BM = torch.arange(source_BM.shape[1], device=source_BM.device) < source_n_B.to(source_BM.device)[:, None]
        return Decoding(now, {"annotations": h_BMD, "keys": key_BMD, "real": real_BM, **self.source_state(source_BM)})

    def step_outputs(self, token_B: Tensor, state: State) -> CopyOutputs:
        assert isinstance(state, Decoding)
        return self._outputs(*(part.unsqueeze(1) for part in self._advance(self._tokens(token_B), state)))

    def source_part(self, state: State) -> Decoding:
        assert isinstance(state, Decoding)
        return state

    def _tokens(self, target: Tensor) -> Tensor:
        """The token's part of x_t."""
        return self.from_token(self.dropout(self.encoder.token(self.embeddable(target))))

    def _advance(self, token_BE: Tensor, state: Decoding) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x_t, s_t, the context and log a_t of one step; the state advances."""
        now, fixed = state.now, state.fixed
        x_BE = token_BE + self.from_context(now["context"])
        h_BW, (h_B1W, c_B1W) = self.decoder.step(self.decoder.input_gates(x_BE), (now["h"], now["c"]))
        s_BD = torch.cat([c_B1W[:, 0], h_BW], -1)
        hidden_BMD = fixed["keys"] + self.query(s_BD)[:, None]
        if self.covered is not None:
            hidden_BMD = hidden_BMD + now["coverage"][..., None] * self.covered
        score_BM = float32_or_wider(self.score(torch.tanh(hidden_BMD))[..., 0])
        log_weights_BM = score_BM.masked_fill(~fixed["real"], never(score_BM)).log_softmax(-1)
        weights_BM = log_weights_BM.exp()
        context_BD = torch.einsum("bm,bmd->bd", weights_BM.to(fixed["annotations"].dtype), fixed["annotations"])
        state.move(h=h_B1W, c=c_B1W, context=context_BD, coverage=now["coverage"] + weights_BM)
        return x_BE, s_BD, context_BD, log_weights_BM

    def _outputs(self, x_BLE: Tensor, s_BLD: Tensor, context_BLD: Tensor, log_weights_BLM: Tensor) -> CopyOutputs:
        """P_vocab and p_gen of all steps at once."""
        gate_BL = s_BLD[..., 0] if self.gate is None else self.gate(torch.cat([context_BLD, s_BLD, x_BLE], -1))[..., 0]
        h_BLW = s_BLD[..., self.config.width :]
        return CopyOutputs(self.deep(torch.cat([h_BLW, context_BLD], -1)), gate_BL, log_weights_BLM)

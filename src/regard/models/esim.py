r"""Two sentences that attend to each other: aligned word by word, compared, and read again.

$$\bar a = \mathrm{BiLSTM}(a),\; \bar b = \mathrm{BiLSTM}(b) \qquad e_{ij} = \bar a_i^\top \bar b_j \qquad
  \tilde a_i = \sum_j \mathrm{softmax}_j(e_{ij})\, \bar b_j \qquad \tilde b_j = \sum_i \mathrm{softmax}_i(e_{ij})\, \bar a_i$$
$$m^a = \mathrm{relu}\big(W [\bar a; \tilde a; \bar a - \tilde a; \bar a ⊙ \tilde a]\big) \qquad v^a = \mathrm{BiLSTM}'(m^a) \qquad
  \tanh\big(W' [\mathrm{mean}\, v^a; \max v^a; \mathrm{mean}\, v^b; \max v^b]\big)$$
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Bidirectional, Dropout, Packing, max_pool, mean_pool
from ..layers.spec import Spec
from ..patterns import lengths
from .model import ModelFacts, Probability, Size, Sizes
from .sentence import join_rows, pack_ids, read_texts, text_positions
from .text import Axes, Pooled, TextModel, TextModelConfig


@dataclass(frozen=True, kw_only=True)
class ESIMConfig(TextModelConfig):
    embedding: Size = 128  # width of the token embeddings
    width: Size = 128  # units of both recurrent layers, per direction
    hidden: Size = 128  # units before the classification head
    attention: str = "dot"  # mechanism that aligns the two texts
    dropout: Probability = 0.3  # dropout of embeddings, of what is compared, and of the vectors before the hidden units

    def __post_init__(self) -> None:
        super().__post_init__()
        Spec.read(self.attention)


PAPER = ESIMConfig(vocab_size=30_000, embedding=300, width=300, hidden=300, dropout=0.5)


class ESIM(TextModel):
    """A classifier of pairs, such as those of natural language inference, by alignment in both directions.

    Cost:    time O((L + M)·W² + L·M·W) per pair, sequential over its tokens.
    Use it:  for entailment, paraphrase and answers, where single words decide.
    Avoid it: where one text is compared with many: nothing can be kept from one pair to the next; InferSent makes vectors.
    Paper:   Chen et al. 2017, "Enhanced LSTM for natural language inference", arXiv:1609.06038, sections 3.1 to 3.3.
    We differ: embeddings are learned, not GloVe's; no tree-LSTM. Any mechanism may align: `attention=softmax(scale=0)` is the mean of the other text.
    """

    facts = ModelFacts(name="esim", year=2016, title="Enhanced LSTM for natural language inference", paper="arXiv:1609.06038")
    Config = ESIMConfig
    config: ESIMConfig
    sizes: ClassVar[Sizes] = {"esim-paper": PAPER}
    texts = (2,)
    train_defaults: ClassVar[Mapping[str, Any]] = {"lr": 2e-3, "epochs": 12, "patience": 3}

    def _build(self) -> None:
        c = self.config
        self.token, self.dropout = nn.Embedding(c.vocab_size, c.embedding), Dropout(c.dropout)
        self.read = Bidirectional("lstm", c.embedding, c.width)
        align = Spec.read(c.attention)
        self.first_to_second, self.second_to_first = (align.build(heads=1, head_dim=2 * c.width, length=c.max_length) for _ in range(2))
        self.within = align.pattern
        self.compare = nn.Linear(8 * c.width, c.width)
        self.compose = Bidirectional("lstm", c.width, c.width)
        self.hidden = nn.Linear(8 * c.width, c.hidden)

    @property
    def pooled_width(self) -> int:
        return self.config.hidden

    def pool(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Pooled:
        self.check(ids_BL, n_B, segment_BL)
        both = join_rows(read_texts(self, ids_BL, n_B, segment_BL, 2))
        h_TD = self.read(self.dropout(self.token(pack_ids(both))), both.n_R)
        m_TW = torch.relu(self._compare(h_TD, self._align(h_TD, both.n_R)))
        v_TD = self.compose(self.dropout(m_TW), both.n_R)
        x_RP = torch.cat([mean_pool(v_TD, both.n_R), max_pool(v_TD, both.n_R)], -1)
        return Pooled(torch.tanh(self.hidden(self.dropout(torch.cat(x_RP.chunk(2), -1)))))

    def _align(self, h_TD: Tensor, n_R: Tensor) -> Tensor:
        """ã and b̃, packed like ā and b̄: for each state of a text, the average of those of the other that are like it."""
        n_a, n_b = n_R.chunk(2)
        a_TD, b_TD = h_TD.split([int(n_a.sum()), int(n_b.sum())])
        first, second = (Packing.of(n, max(int(n.max()), 1)) for n in (n_a, n_b))
        a_BLHD, b_BMHD = first.pad(a_TD[None]).unsqueeze(2), second.pad(b_TD[None]).unsqueeze(2)
        soft_a = self.first_to_second(a_BLHD, b_BMHD, b_BMHD, self.within & lengths(n_b)).squeeze(2)
        soft_b = self.second_to_first(b_BMHD, a_BLHD, a_BLHD, self.within & lengths(n_a)).squeeze(2)
        return torch.cat([first.pack(soft_a), second.pack(soft_b)], 1).squeeze(0)

    def _compare(self, h: Tensor, soft: Tensor) -> Tensor:
        """W [h; s; h − s; h ⊙ s] as a matmul of three parts: W₁h + W₂s + W₃(h − s) = (W₁ + W₃)h + (W₂ − W₃)s."""
        of_h, of_soft, of_difference, of_product = self.compare.weight.chunk(4, 1)
        weight = torch.cat([of_h + of_difference, of_soft - of_difference, of_product], 1)
        return F.linear(torch.cat([h, soft, h * soft], -1), weight, self.compare.bias)

    def axes(self, segment_L: Sequence[int]) -> Mapping[str, Sequence[Axes]]:
        first, second = text_positions(segment_L, 2)
        return {"first_to_second": [Axes(first, second)], "second_to_first": [Axes(second, first)]}

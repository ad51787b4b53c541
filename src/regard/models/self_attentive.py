r"""A matrix in place of a sentence vector: several learned queries over the states of a bidirectional LSTM, which are asked to differ.

$$A = \mathrm{softmax}\big(W_2 \tanh(W_1 H^\top)\big) \qquad M = A H \qquad \text{loss} + λ\, \lVert A A^\top - I \rVert_F^2$$
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec
from torch import Tensor

from ..layers import AttentionPooling, redundancy
from .model import ModelFacts, Size, Sizes
from .sentence import SentenceConfig, SentenceEncoder, pooling_axes
from .text import Axes, Pooled


@dataclass(frozen=True, kw_only=True)
class SelfAttentiveConfig(SentenceConfig):
    queries: Size = 8  # rows of the matrix: r in the paper
    key_size: Size = 64  # units of tanh(W₁ h): d_a in the paper
    penalty: Annotated[float, msgspec.Meta(ge=0)] = 0.03  # λ: what ‖A Aᵀ − I‖² counts in the loss of an example


PAPER = SelfAttentiveConfig(vocab_size=30_000, embedding=100, width=300, queries=30, key_size=350, hidden=3000, penalty=1.0, dropout=0.5)


class SelfAttentive(SentenceEncoder):
    """A sentence encoder whose vector is the average of states for each of several learned queries.

    Cost:    time O(n·(W² + r·W)) per text, sequential over its n tokens.
    Use it:  for classification of texts where one wants to see which words each part of the vector is made of.
    Avoid it: for embeddings that must be small: the vector is r times as wide as a state. Where two texts differ in one word, ESIM.
    Paper:   Lin et al. 2017, "A structured self-attentive sentence embedding", arXiv:1703.03130, sections 2.1 and 2.2.
    We differ: W₁ has a bias. The penalty counts per example, with a smaller λ by default: r² − r is its maximum but for r. For pairs the features
             are those of InferSent; the paper's own gated products of M are not here.
    """

    facts = ModelFacts(name="self_attentive", year=2017, title="A structured self-attentive sentence embedding", paper="arXiv:1703.03130")
    Config = SelfAttentiveConfig
    config: SelfAttentiveConfig
    sizes: ClassVar[Sizes] = {"self-attentive-paper": PAPER}

    def _build_pooling(self) -> None:
        c = self.config
        self.attention = AttentionPooling(2 * c.width, c.key_size, c.queries)

    @property
    def vector_width(self) -> int:
        return 2 * self.config.width * self.config.queries

    def _activation(self, x: Tensor) -> Tensor:
        return x.relu()

    def _pool(self, h_TD: Tensor, n_R: Tensor) -> Pooled:
        matrix_RQD, c = self.attention(h_TD, n_R), self.config
        if not (self.training and c.penalty):
            return Pooled(matrix_RQD.flatten(1))
        weights_RQM = self.attention.weights(h_TD, n_R)  # a second time, 1 % of the recurrent layer: so the mechanism can be observed
        return Pooled(matrix_RQD.flatten(1), c.penalty * redundancy(weights_RQM))

    def axes(self, segment_L: Sequence[int]) -> Mapping[str, Sequence[Axes]]:
        return pooling_axes("attention.attention", self.config.queries, segment_L, self.config.texts)

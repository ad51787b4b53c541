r"""Sentence vectors learned from pairs: a bidirectional LSTM whose states are pooled by their maximum, their mean, their ends or attention.

$$u = \max_i h_i \qquad \text{or} \qquad \tfrac1n \sum_i h_i \qquad \text{or} \qquad [\overrightarrow h_n; \overleftarrow h_1] \qquad \text{or} \qquad
  u_r = \sum_i \mathrm{softmax}_i\big(w_r^\top \tanh(W h_i + b)\big)\, h_i$$
$$\text{a pair: } \tanh\big(W [u; v; |u - v|; u ⊙ v]\big)$$
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..layers import AttentionPooling, last_states, max_pool, mean_pool
from .model import ModelFacts, Size, Sizes
from .sentence import SentenceConfig, SentenceEncoder, pooling_axes
from .text import Axes, Pooled

POOLINGS = {"max": max_pool, "mean": mean_pool, "last": last_states}


@dataclass(frozen=True, kw_only=True)
class InferSentConfig(SentenceConfig):
    pooling: str = "max"  # max, mean, last (the final state of each direction), or inner (attention with learned queries)
    views: Size = 4  # learned queries of the inner attention; their averages are concatenated

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("pooling", (*POOLINGS, "inner"))


PAPER = InferSentConfig(vocab_size=30_000, texts=2, embedding=300, width=2048, hidden=512, dropout=0.0)


class InferSent(SentenceEncoder):
    """A sentence encoder for classification, for pairs such as those of natural language inference, and for vectors to compare.

    Cost:    time O(n·W²) per text, sequential over its n tokens; the vector of a text can be kept and compared with any other.
    Use it:  for vectors of sentences from little data; `pooling=max` is the paper's best.
    Avoid it: where two texts differ in one word: a vector may not keep it, and ESIM compares word by word.
    Paper:   Conneau et al. 2017, "Supervised learning of universal sentence representations from natural language inference data",
             arXiv:1705.02364, sections 3.2 and 3.3.
    We differ: embeddings are learned, not GloVe's. All views of the inner attention differ; the published code uses one of its queries three
             times. One layer of tanh units before the classification head. One text, too: then they read u.
    """

    facts = ModelFacts(
        name="infersent",
        year=2017,
        title="Supervised learning of universal sentence representations from natural language inference data",
        paper="arXiv:1705.02364",
    )
    Config = InferSentConfig
    config: InferSentConfig
    sizes: ClassVar[Sizes] = {"infersent-paper": PAPER}

    def _build_pooling(self) -> None:
        c = self.config
        self.attention = AttentionPooling(2 * c.width, 2 * c.width, c.views) if c.pooling == "inner" else None

    @property
    def vector_width(self) -> int:
        return 2 * self.config.width * (self.config.views if self.config.pooling == "inner" else 1)

    def _pool(self, h_TD: Tensor, n_R: Tensor) -> Pooled:
        if self.attention is not None:
            return Pooled(self.attention(h_TD, n_R).flatten(1))
        return Pooled(POOLINGS[self.config.pooling](h_TD, n_R))

    def axes(self, segment_L: Sequence[int]) -> Mapping[str, Sequence[Axes]]:
        c = self.config
        return pooling_axes("attention.attention", c.views, segment_L, c.texts) if c.pooling == "inner" else {}

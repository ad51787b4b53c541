r"""Hierarchical Attention Network: words make sentences, sentences make the document, and attention chooses on both levels.

$$h_{it} = \mathrm{BiGRU}_t(E w_{i1}, …, E w_{iT}) \qquad α_{it} = \mathrm{softmax}_t\big(u_w^\top \tanh(W_w h_{it} + b_w)\big) \qquad
  s_i = \sum_t α_{it}\, h_{it}$$
$$h_i = \mathrm{BiGRU}_i(s_1, …, s_L) \qquad α_i = \mathrm{softmax}_i\big(u_s^\top \tanh(W_s h_i + b_s)\big) \qquad v = \sum_i α_i\, h_i$$
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..layers import AttentionPooling, Bidirectional, Dropout, max_pool, mean_pool
from .model import ModelFacts, Probability, Size, Sizes
from .text import DocumentModel, DocumentModelConfig, Pooled, Sentences

CELLS, POOLINGS = ("gru", "lstm"), ("attention", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class HANConfig(DocumentModelConfig):
    embedding: Size = 100  # width of the token embeddings
    width: Size = 50  # units of the recurrent layers of words and of sentences, per direction
    hidden: Size = 100  # size of the keys and of the queries u
    cell: str = "gru"  # gru or lstm
    pooling: str = "attention"  # attention, mean or max, on both levels
    dropout: Probability = 0.5  # dropout of embeddings and of sentence vectors

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("cell", CELLS)
        self._one_of("pooling", POOLINGS)


PAPER = HANConfig(vocab_size=30_000, embedding=200, dropout=0.0)


class HAN(DocumentModel):
    """Two recurrent layers, over words and over sentences, each followed by attention that pools its states.

    Cost:    time O(n·W²) per document of n tokens; sequential over the longest sentence of a batch and then over the most sentences, not over n.
    Use it:  for documents of many sentences, and where it must be seen which of them decided.
    Avoid it: for single sentences: InferSent is the same network with one level. Where pretrained weights exist, an encoder knows more.
    Paper:   Yang et al. 2016, "Hierarchical attention networks for document classification", NAACL, equations 1 to 10.
    We differ: dropout, and embeddings that are learned from the documents instead of word2vec's. The sentences of all documents of a batch are
             read together, real tokens only: a document of two sentences costs two sentences, whatever the others of its batch have.
    """

    facts = ModelFacts(name="han", year=2016, title="Hierarchical attention networks for document classification", paper="NAACL 2016")
    Config = HANConfig
    config: HANConfig
    sizes: ClassVar[Sizes] = {"han-paper": PAPER}
    train_defaults: ClassVar[Mapping[str, Any]] = {"lr": 2e-3, "epochs": 6, "patience": 2}

    def _build(self) -> None:
        c = self.config
        self.token, self.dropout = nn.Embedding(c.vocab_size, c.embedding), Dropout(c.dropout)
        self.words = Level(c.embedding, c)
        self.sentences = Level(2 * c.width, c)
        nn.init.normal_(self.token.weight, std=0.1)

    @property
    def pooled_width(self) -> int:
        return 2 * self.config.width

    def pool(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Pooled:
        self.check(ids_BL, n_B, segment_BL)
        ids_T, n_R, count_B = Sentences.of(ids_BL, n_B, segment_BL)
        s_RP = self.words(self.dropout(self.token(ids_T)), n_R)
        return Pooled(self.sentences(self.dropout(s_RP), count_B))


class Level(nn.Module):
    """Rows of packed vectors become one vector each: read in both directions, then pooled."""

    def __init__(self, inputs: int, config: HANConfig):
        super().__init__()
        self.read = Bidirectional(config.cell, inputs, config.width)
        self.attention = AttentionPooling(2 * config.width, config.hidden) if config.pooling == "attention" else None
        if self.attention is not None:
            nn.init.normal_(self.attention.query_RK)  # with small queries attention stays uniform for epochs: LOG, 2026-11-18
        self.pooling = max_pool if config.pooling == "max" else mean_pool

    def forward(self, x_TD: Tensor, n_R: Tensor) -> Tensor:
        h_TP = self.read(x_TD, n_R)
        return self.pooling(h_TP, n_R) if self.attention is None else self.attention(h_TP, n_R).squeeze(1)

r"""Base of the sentence encoders: words read in both directions, pooled to one vector, and for pairs the features of InferSent.

$$h_1 … h_n = \mathrm{BiLSTM}(E w_1, …, E w_n) \qquad u = \mathrm{pool}(h) \qquad
  \text{one text: } φ(W u) \qquad \text{a pair: } φ\big(W [u; v; |u - v|; u ⊙ v]\big)$$

Both texts of a pair are rows of one batch for the recurrent layer. The begin token is not read: the second text of a pair has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from ..layers import Bidirectional, Dropout
from .model import Count, Probability, Size
from .text import Axes, Pooled, Rows, TextModel, TextModelConfig, split_segments


@dataclass(frozen=True, kw_only=True)
class SentenceConfig(TextModelConfig):
    texts: Annotated[int, msgspec.Meta(ge=1, le=2)] = 1  # texts per example: 1, or the 2 of a pair
    embedding: Size = 128  # width of the token embeddings
    width: Size = 128  # units of the LSTM, per direction
    hidden: Count = 128  # units between the vector of the text, or the features of the pair, and the classification head; 0: none
    dropout: Probability = 0.3  # dropout of embeddings, and of the vectors before the hidden units


class SentenceEncoder(TextModel):
    """Embeddings, a bidirectional LSTM and a pooling. A model writes `_build_pooling`, `_pool` and `vector_width`."""

    config: SentenceConfig
    train_defaults: ClassVar[Mapping[str, Any]] = {"lr": 2e-3, "epochs": 12, "patience": 3}

    def _build(self) -> None:
        c = self.config
        self.texts = (c.texts,)
        self.token, self.dropout = nn.Embedding(c.vocab_size, c.embedding), Dropout(c.dropout)
        self.read = Bidirectional("lstm", c.embedding, c.width)
        self._build_pooling()
        self.hidden = nn.Linear(self._features, c.hidden) if c.hidden else None
        nn.init.normal_(self.token.weight, std=0.3)

    def _build_pooling(self) -> None:
        """Create the submodules of the pooling, for states of size 2 · width."""

    @property
    def vector_width(self) -> int:
        """The width of the vector of one text."""
        raise NotImplementedError

    def _pool(self, h_TD: Tensor, n_R: Tensor) -> Pooled:
        """One vector per text, from the packed states of all texts."""
        raise NotImplementedError

    @property
    def _features(self) -> int:
        return self.vector_width * (4 if self.config.texts == 2 else 1)

    @property
    def pooled_width(self) -> int:
        return self.config.hidden or self._features

    def _activation(self, x: Tensor) -> Tensor:
        """Apply the activation of the hidden units."""
        return x.tanh()

    def encode(self, rows: Rows) -> Pooled:
        """One vector per text, before any comparison."""
        return self._pool(self.read(self.dropout(self.token(pack_ids(rows))), rows.n_R), rows.n_R)

    def pool(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Pooled:
        self.check(ids_BL, n_B, segment_BL)
        texts = read_texts(self, ids_BL, n_B, segment_BL, self.config.texts)
        x_RP, penalty_R = self.encode(join_rows(texts))
        if len(texts) == 2:
            u_BP, v_BP = x_RP.chunk(2)
            x_RP = torch.cat([u_BP, v_BP, (u_BP - v_BP).abs(), u_BP * v_BP], -1)
            penalty_R = None if penalty_R is None else torch.stack(penalty_R.chunk(2)).sum(0)
        return Pooled(x_RP if self.hidden is None else self._activation(self.hidden(self.dropout(x_RP))), penalty_R)

    def sentence_embeddings(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Tensor:
        """One unit vector per text, y_BP: before any comparison with another and without the hidden units."""
        self.check(ids_BL, n_B, segment_BL)
        return F.normalize(self.encode(*read_texts(self, ids_BL, n_B, None, 1)).vector_BP, dim=-1)


def read_texts(model: TextModel, ids_BL: Tensor, n_B: Tensor | None, segment_BL: Tensor | None, count: int) -> tuple[Rows, ...]:
    """The texts of each example as rows, each without the begin token and with the end token."""
    if n_B is None:
        n_B = torch.full((len(ids_BL),), ids_BL.shape[1], device=ids_BL.device)
    if ids_BL.shape[1] < 2:
        raise ShapeError(f"{model.facts.name} got ids {tuple(ids_BL.shape)}; expected at least a begin and an end token per text")
    if count == 1:
        return (Rows(ids_BL[:, 1:], (n_B - 1).clamp(min=0)),)
    if segment_BL is None:
        raise ShapeError(
            f"{model.facts.name} reads pairs; give segment_BL, 0 for the tokens of the first text and 1 for those of the second"
        )
    return split_segments(ids_BL[:, 1:], n_B - 1, segment_BL[:, 1:], count)


def join_rows(texts: Sequence[Rows]) -> Rows:
    """Several texts per example as one batch: the first of all examples, then the second of all."""
    if len(texts) == 1:
        return texts[0]
    longest = max(rows.ids_RM.shape[1] for rows in texts)
    ids = [F.pad(rows.ids_RM, (0, longest - rows.ids_RM.shape[1])) for rows in texts]
    return Rows(torch.cat(ids), torch.cat([rows.n_R for rows in texts]))


def pack_ids(rows: Rows) -> Tensor:
    """ids_T: the tokens of the first row, of the second, and so on, without padding."""
    return rows.ids_RM[torch.arange(rows.ids_RM.shape[1], device=rows.ids_RM.device) < rows.n_R[:, None]]


def text_positions(segment_L: Sequence[int], count: int) -> list[list[int]]:
    """The positions of the tokens of each text in the input, without the begin token."""
    return [[at for at, segment in enumerate(segment_L) if at and (count == 1 or segment == text)] for text in range(count)]


def pooling_axes(path: str, queries: int, segment_L: Sequence[int], texts: int) -> Mapping[str, Sequence[Axes]]:
    """The weights of an `AttentionPooling` with this many queries: a matrix per text."""
    names = [f"query {n + 1}" for n in range(queries)] if queries > 1 else ["weight"]
    positions = text_positions(segment_L, texts)
    return {path: [Axes(names, keys, row, f"text {row + 1}" if texts > 1 else "") for row, keys in enumerate(positions)]}

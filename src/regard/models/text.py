"""Models that read a text, a pair of texts or a document and make one vector of it, which a classifier reads.

All of them take ids_BL, the number of tokens n_B of each row, and segment_BL: which text of a pair, or which sentence of a document, each
token belongs to.

    BOS the cat sat EOS it moved EOS        ids
     0   0   0   0   0  1    1    1         segments
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ShapeError
from .model import Model, ModelConfig, Size

Segments = Literal["texts", "sentences"]


@dataclass(frozen=True, kw_only=True)
class TextModelConfig(ModelConfig):
    vocab_size: Size  # number of tokens in the vocabulary
    max_length: Size = 512  # longest text, for positional embeddings


class Pooled(NamedTuple):
    """One vector per text, and what is added to the loss of each while training."""

    vector_BP: Tensor  # one vector per text
    penalty_B: Tensor | None = None  # added to the loss of each text while training; None: nothing


class Axes(NamedTuple):
    """Axes of one matrix of attention weights: names, or positions of tokens in the input."""

    queries: Sequence[int | str]  # names of the rows, or positions of tokens
    keys: Sequence[int | str]  # names of the columns, or positions of tokens
    row: int = 0  # row of the batch in which it was computed
    name: str = ""  # name of that row, where there are several: which text, which sentence


class TextModel(Model):
    """Reads texts: one vector per text, pair or document. A model implements `pool` and `pooled_width`.

    Shape: ids_BL, n_B, segment_BL → vector_BP (`pool`).
    """

    config: TextModelConfig
    segments: ClassVar[Segments] = "texts"  # meaning of the numbers in `segment_BL`: the texts of a pair, or the sentences of a document
    texts: tuple[int, ...] = (1, 2)  # numbers of texts that an example may have
    train_defaults: ClassVar[Mapping[str, Any]] = {}  # training options that suit it, where they differ from those of the task
    usual_length: ClassVar[int] = 128  # tokens per example that a new model is built for, unless told otherwise

    @property
    def pooled_width(self) -> int:
        """The width P of the vectors that `pool` makes."""
        raise NotImplementedError

    def pool(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Pooled:
        """One vector per row; the first n_B tokens of each are real, the rest is padding.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row; None: all.
            segment_BL: segment of each token; None: all 0.
        """
        raise NotImplementedError

    def sentence_embeddings(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Tensor:
        """One unit vector per text, y_BP, to be compared by dot products: what `pool` makes of it.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row; None: all.
            segment_BL: segment of each token; None: all 0.
        """
        return F.normalize(self.pool(ids_BL, n_B, segment_BL).vector_BP, dim=-1)

    def axes(self, segment_L: Sequence[int]) -> Mapping[str, Sequence[Axes]]:
        """Axes of the attention weights, by the path of their mechanism, when one example with these segments is read.

        A mechanism that is not here is self-attention over all tokens.
        """
        return {}

    def check(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> None:
        """Raise an error for inputs whose shapes or types do not fit together.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row; None: all.
            segment_BL: segment of each token; None: all 0.
        """
        self._check_ids(ids_BL, segment_BL)
        if n_B is not None and n_B.shape != ids_BL.shape[:1]:
            raise ShapeError(
                f"{type(self).__name__} takes one length per row, got lengths {tuple(n_B.shape)} for ids {tuple(ids_BL.shape)}"
            )


@dataclass(frozen=True, kw_only=True)
class DocumentModelConfig(TextModelConfig):
    max_length: Size = 2048  # tokens per document; the rest of a longer one is not read
    max_sentences: Size = 256  # sentences per document; the rest of a longer one is not read
    sentence_length: Size = 64  # tokens per sentence; a longer one is read as several


class DocumentModel(TextModel):
    """Reads documents sentence by sentence."""

    config: DocumentModelConfig
    segments = "sentences"
    texts = (1,)
    usual_length = DocumentModelConfig.max_length


class Rows(NamedTuple):
    """Texts of a batch, padded: ids_RM, and the number of tokens of each, n_R."""

    ids_RM: Tensor
    n_R: Tensor


class Sentences(NamedTuple):
    """The real tokens of a batch of documents, packed, and how they are divided."""

    ids_T: Tensor  # tokens of the first document's first sentence, of its second, …
    n_R: Tensor  # tokens of each sentence
    count_B: Tensor  # sentences of each document

    @classmethod
    def of(cls, ids_BL: Tensor, n_B: Tensor | None, segment_BL: Tensor | None) -> Sentences:
        """Consecutive tokens of a document with the same segment number are a sentence; without numbers the document is one."""
        real_BL = torch.ones_like(ids_BL, dtype=torch.bool)
        if n_B is not None:
            real_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device) < n_B[:, None]
        begins_BL = real_BL.clone()
        begins_BL[:, 1:] &= False if segment_BL is None else segment_BL[:, 1:] != segment_BL[:, :-1]
        begins_T = begins_BL[real_BL]
        return cls(ids_BL[real_BL], torch.bincount(begins_T.cumsum(0) - 1, minlength=int(begins_T.sum())), begins_BL.sum(1))


def split_segments(ids_BL: Tensor, n_B: Tensor | None, segment_BL: Tensor, count: int) -> tuple[Rows, ...]:
    """The tokens of segment 0, of segment 1, …, each with a row per row of the batch; a row without tokens of a segment has length 0."""
    real_BL = segment_BL >= 0 if n_B is None else torch.arange(ids_BL.shape[1], device=ids_BL.device) < n_B[:, None]
    found = []
    for segment in range(count):
        here_BL = real_BL & (segment_BL == segment)
        n_R = here_BL.sum(1)
        first_BL = (~here_BL).long().argsort(dim=1, stable=True)[:, : max(int(n_R.max()), 1)]  # its tokens, in order, before all others
        found.append(Rows(ids_BL.gather(1, first_BL), n_R))
    return tuple(found)

"""A classification head over a language model or an encoder, for texts or for single tokens.

a model of texts  W · pool(text) + b      the vector of the text, of the pair or of the document
an encoder        the same                                                                   W · x_t + b   each token
a language model  W · x_n + b             its last token, which has read all others          W · x_t + b   each token
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import NotSupported
from ..layers import Dropout
from .encoder import TextEncoder
from .headed import Headed
from .language import LanguageModel
from .model import Model
from .ngram_head import NGramHead
from .text import Pooled, TextModel


class Classifier(Headed):
    """A model that reads texts, with a classification head. Its config is that of its body.

    Args:
        body: model that reads the texts.
        labels: number of classes N.
        each: classify every token; False: the text as a whole.
        dropout: dropout rate before the head.
        ngram_buckets: hash buckets of a linear classifier beside the model (`NGramHead`); 0: none.

    Shape: ids_BL, n_B, segment_BL → logits_BN, or with `each` logits_BLN.
    """

    def __init__(self, body: Model, labels: int, *, each: bool = False, dropout: float = 0.1, ngram_buckets: int = 0):
        super().__init__(body)
        if not isinstance(body, LanguageModel | TextModel):
            raise NotSupported(f"{type(body).__name__} does not read a single text; expected a language model or an encoder")
        if each and not isinstance(body, LanguageModel | TextEncoder):
            raise NotSupported(f"{type(body).__name__} makes one vector of a text; labels of words need a language model or an encoder")
        self.each = each
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(body.pooled_width if isinstance(body, TextModel) else body.head()[0].shape[1], labels)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)
        self.ngrams = NGramHead(ngram_buckets, labels) if ngram_buckets else None

    def pool(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor | None = None) -> Pooled:
        """Vector that the head reads of each text; a language model ignores segments.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: segment of each token; None: all 0.
        """
        if isinstance(self.body, TextModel):
            return self.body.pool(ids_BL, n_B, segment_BL)
        assert isinstance(self.body, LanguageModel)
        x_BLD = self.body.features(ids_BL)
        return Pooled(x_BLD[torch.arange(len(n_B), device=x_BLD.device), n_B - 1])

    def classify(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor | None = None) -> Pooled:
        """logits_BN per text, or logits_BLN per token, with the penalty of the pooling.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: segment of each token; None: all 0.
        """
        if not self.each:
            vector_BP, penalty_B = self.pool(ids_BL, n_B, segment_BL)
            logits_BN = self.output(self.dropout(vector_BP))
            if self.ngrams is not None and not self.training:
                logits_BN = logits_BN + self.ngrams.share * self.ngrams(ids_BL, n_B, segment_BL)
            return Pooled(logits_BN, penalty_B)
        assert isinstance(self.body, LanguageModel | TextEncoder)
        x_BLD = self.body.features(ids_BL) if isinstance(self.body, LanguageModel) else self.body.features(ids_BL, n_B, segment_BL)
        return Pooled(self.output(self.dropout(x_BLD)))

    def forward(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor | None = None) -> Tensor:
        """logits_BN, or logits_BLN.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: segment of each token; None: all 0.
        """
        return self.classify(ids_BL, n_B, segment_BL)[0]

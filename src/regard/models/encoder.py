"""Encoders of a text, which read it in both directions, and what BERT and its relatives share: token, position and segment embeddings, post-norm blocks, and pretraining heads.

$$x_t = N(E[\\mathrm{id}_t] + P_t + S_{\\mathrm{segment}}) \\qquad x \\leftarrow N(x + \\mathrm{mix}(x)),\\; x \\leftarrow N(x + \\mathrm{FFN}(x))$$

A model defines the mixer of each layer (`_mixer`); the rest is here. Padded batches are packed: padding passes through attention
only, and its features are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadConfig, NotSupported, ShapeError
from ..kernels import apply_linear, fast_linear
from ..layers import ACTIVATIONS, Block, Dropout, FeedForward, LayerNorm, Packing, init_truncated
from ..patterns import full, lengths
from .model import Count, Depth, Positive, Probability, Size
from .text import Pooled, TextModel, TextModelConfig


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(TextModelConfig):
    """Vocabulary and longest text."""


class TextEncoder(TextModel):
    """Reads a text in both directions: features of each token, logits of masked tokens, and one vector per text.

    A model implements `features`, `mlm_features`, `head` and `pooled`; the rest is here.

    Shape: ids_BL, n_B, segment_BL → logits_BLN; `pool` → vector_BP.
    """

    config: TextEncoderConfig

    def features(
        self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None, packing: Packing | None = None
    ) -> Tensor:
        """Features of every token, x_BLD.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row; None: all.
            segment_BL: segment of each token; None: all 0.
            packing: positions of the real tokens, `Packing.of(n_B, L)`; the result then has no padding, x_1TD.
        """
        raise NotImplementedError

    def mlm_features(self, x: Tensor) -> Tensor:
        """Features made ready for the output projection: `fast_linear(mlm_features(x), *head())` are the logits of hidden tokens."""
        return x

    def pooled(self, x_BLD: Tensor) -> Tensor:
        """One vector per text, y_BD, from its features: what a classifier reads."""
        raise NotImplementedError

    @property
    def pooled_width(self) -> int:
        return self.head()[0].shape[1]

    def pool(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Pooled:
        return Pooled(self.pooled(self.features(ids_BL, n_B, segment_BL)))

    def forward(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Tensor:
        """logits_BLN of the token at every position.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row; None: all.
            segment_BL: segment of each token; None: all 0.
        """
        return self.logits(self.features(ids_BL, n_B, segment_BL))

    def logits(self, x: Tensor) -> Tensor:
        return fast_linear(self.mlm_features(x), *self.head())

    def cross_entropy(self, x_TD: Tensor, target_T: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        return super().cross_entropy(self.mlm_features(x_TD), target_T, smoothing)

    def sentence_embeddings(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Tensor:
        """One unit vector per text, y_BD: the normalised mean of its token features, to be compared by dot products."""
        x_BLD = self.features(ids_BL, n_B, segment_BL)
        if n_B is None:
            return F.normalize(x_BLD.mean(1), dim=-1)
        real_BL1 = (torch.arange(x_BLD.shape[1], device=x_BLD.device) < n_B[:, None])[..., None]
        return F.normalize((x_BLD * real_BL1).sum(1) / n_B[:, None].clamp(min=1), dim=-1)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TextEncoderConfig):
    width: Size = 256  # width of the model: features per token between layers
    depth: Depth = 4  # number of layers
    hidden: Size = 1024  # width inside the feed-forward layers
    segments: Count = 2  # number of segment embeddings; 0: none
    padding: Count | None = None  # id of tokens without a position, as in RoBERTa: positions count from padding + 1 and leave them out
    embedding_width: Size | None = None  # size of the embeddings, where it differs from the width: a linear layer follows them (ELECTRA)
    dropout: Probability = 0.1  # dropout rate
    activation: str = "gelu"  # activation of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    eps: Positive = 1e-12  # epsilon of the layer norms
    pooler: bool = True  # a linear layer and tanh over the first token: one vector per text
    mlm_head: bool = True  # masked language modelling
    nsp_head: bool = True  # next sentence prediction

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("activation", ACTIVATIONS)
        if self.nsp_head and not self.pooler:
            raise BadConfig(f"{type(self).__name__}: nsp_head=True with pooler=False; expected pooler=True, which the NSP head reads")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(EncoderConfig):
    heads: Size = 4  # attention heads per layer

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; expected a multiple of heads={self.heads}")


class BertEmbeddings(nn.Module):
    """The sum of token, position and segment embeddings, normed; with `projected` or another width, followed by a linear layer.

    Positions start at row `offset` of their table: some published tables reserve rows. With `config.padding` they start after that row,
    and tokens with that id, which have no position, take the row itself.
    """

    def __init__(self, config: EncoderConfig, offset: int = 0, projected: bool = False):
        super().__init__()
        width = config.embedding_width or config.width
        self.padding, self.offset = config.padding, offset if config.padding is None else config.padding + 1
        self.token = nn.Embedding(config.vocab_size, width)
        self.position = nn.Embedding(config.max_length + self.offset, width)
        self.segment = nn.Embedding(config.segments, width) if config.segments else None
        self.norm = LayerNorm(width, eps=config.eps)
        self.projection = nn.Linear(width, config.width) if projected or config.embedding_width else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(self, ids_BL: Tensor, segment_BL: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        L, positions = ids_BL.shape[1], self.position.num_embeddings - self.offset
        if positions < L:
            raise ShapeError(
                f"the text has {L} tokens, and the model has {positions} positions; truncate the text, or build the model with a larger max_length"
            )
        if self.padding is None:
            at_BL = torch.arange(self.offset, self.offset + L, device=ids_BL.device).expand_as(ids_BL)
        else:
            counted_BL = (ids_BL != self.padding).long()
            at_BL = counted_BL.cumsum(1) * counted_BL + self.padding
        if packing is not None:
            ids_BL, at_BL = packing.packed(ids_BL), packing.packed(at_BL)
            segment_BL = None if segment_BL is None else packing.packed(segment_BL)
        x_BLE = self.token(ids_BL) + self.position(at_BL)
        if self.segment is not None:  # a model with one segment takes all texts for it
            x_BLE = x_BLE + (self.segment.weight[0] if segment_BL is None or len(self.segment.weight) == 1 else self.segment(segment_BL))
        return self.dropout(self.projection(self.norm(x_BLE)))


class Encoder(TextEncoder):
    """A stack of blocks over `BertEmbeddings`, with the heads the config asks for."""

    config: EncoderConfig
    offset: ClassVar[int] = 0  # rows of the position table before position 0
    projected: ClassVar[bool] = False  # a linear layer after the embeddings
    mixer_dropout: ClassVar[float | None] = None  # dropout after the mixers, where it differs from the config's

    def _build(self) -> None:
        c = self.config
        self.activation = ACTIVATIONS[c.activation]
        norm = partial(LayerNorm, eps=c.eps)

        def block(layer: int) -> Block:
            feedforward = FeedForward(c.width, c.hidden, self.activation)
            return Block(
                c.width, self._mixer(layer), feedforward, placement="post", norm=norm, dropout=c.dropout, mixer_dropout=self.mixer_dropout
            )

        self.embedding = BertEmbeddings(c, self.offset, self.projected)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.pooler = nn.Linear(c.width, c.width) if c.pooler else None
        output_width = c.embedding_width or c.width  # that of the token embedding, which is the output projection, too
        self.mlm_head = nn.Sequential(nn.Linear(c.width, output_width), norm(output_width)) if c.mlm_head else None
        self.mlm_bias = nn.Parameter(torch.zeros(c.vocab_size)) if c.mlm_head else None
        self.nsp_head = nn.Linear(c.width, 2) if c.nsp_head else None
        init_truncated(self)

    def _mixer(self, layer: int) -> nn.Module:
        """The mixer of this layer."""
        raise NotImplementedError

    def features(
        self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None, packing: Packing | None = None
    ) -> Tensor:
        self.check(ids_BL, n_B, segment_BL)
        inside = packing
        if inside is None and n_B is not None:
            inside = Packing.of(n_B, ids_BL.shape[1])
        x_BLD, pattern = self.embedding(ids_BL, segment_BL, inside), full if n_B is None else lengths(n_B)
        for block in self.blocks:
            x_BLD = block(x_BLD, pattern, packing=inside)
        return x_BLD if inside is packing or inside is None else inside.pad(x_BLD)

    def mlm_features(self, x: Tensor) -> Tensor:
        if self.mlm_head is None:
            raise NotSupported(f"this {type(self).__name__} has no MLM head; build it with mlm_head=True and train that head")
        transform, norm = self.mlm_head
        return norm(self.activation(apply_linear(transform, x)))  # type: ignore[arg-type]

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.embedding.token.weight, self.mlm_bias

    @property
    def pooled_width(self) -> int:
        return self.config.width  # embeddings may be narrower

    def pooled(self, x_BLD: Tensor) -> Tensor:
        """y_BD: the pooler's output for the first token; without a pooler, the features of that token."""
        return x_BLD[:, 0] if self.pooler is None else torch.tanh(self.pooler(x_BLD[:, 0]))

    def nsp_logits(self, y_BD: Tensor) -> Tensor:
        """logits_B2 from the output of `pooled`: class 0, the second text follows the first; class 1, it does not."""
        if self.nsp_head is None:
            raise NotSupported(f"this {type(self).__name__} has no NSP head; build it with nsp_head=True and train that head")
        return self.nsp_head(y_BD)

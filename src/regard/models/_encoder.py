"""What BERT and its kin share: an embedding of words, places and kinds, blocks with the norm after each sum, and heads on top.

$$x_t = N(E[\\mathrm{id}_t] + P_t + S_{\\mathrm{kind}}) \\qquad x \\leftarrow N(x + \\mathrm{mix}(x)),\\; x \\leftarrow N(x + \\mathrm{FFN}(x))$$

A model says how a layer mixes (`_mixer`); the rest is here. Rows of a padded batch are packed: padding goes through attention and
through nothing else, and comes back as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import BadConfig, NotSupported, ShapeError
from ..kernels import applied
from ..layers import ACTIVATIONS, Block, Dropout, FeedForward, LayerNorm, Packing, truncated
from ..patterns import full, lengths
from ._language import LanguageModelConfig, TextEncoder


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(LanguageModelConfig):
    length: int = 512
    width: int = 256
    depth: int = 4
    hidden: int = 1024  # of the feed-forward parts
    kinds: int = 2  # texts that are told apart in one input
    dropout: float = 0.1
    activation: str = "gelu"
    eps: float = 1e-12  # of the norms
    pooler: bool = True  # one vector a text, of its first token
    words: bool = True  # a head that guesses hidden words
    sentences: bool = True  # a head that says whether one text follows another

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("activation", ACTIVATIONS)
        if self.sentences and not self.pooler:
            raise BadConfig(f"{type(self).__name__}: the head for sentences reads what the pooler says; expected pooler with sentences")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(EncoderConfig):
    heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; expected a multiple of heads={self.heads}")


class Words(nn.Module):
    """Token, place and kind, added and normed; with `projected`, through a linear map then.

    Places begin at row `offset` of their table: some published tables keep rows for padding.
    """

    def __init__(self, config: EncoderConfig, offset: int = 0, projected: bool = False):
        super().__init__()
        self.token = nn.Embedding(config.vocab, config.width)
        self.place = nn.Embedding(config.length + offset, config.width)
        self.kind = nn.Embedding(config.kinds, config.width)
        self.norm = LayerNorm(config.width, eps=config.eps)
        self.projection = nn.Linear(config.width, config.width) if projected else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.offset = offset

    def forward(self, ids_BL: Tensor, kind_BL: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        L, places = ids_BL.shape[1], self.place.num_embeddings - self.offset
        if places < L:
            raise ShapeError(f"a text of {L} tokens, and places for {places}; cut it, or build the model with a larger length")
        at_BL = torch.arange(self.offset, self.offset + L, device=ids_BL.device).expand_as(ids_BL)
        if packing is not None:
            ids_BL, at_BL = packing.packed(ids_BL), packing.packed(at_BL)
            kind_BL = None if kind_BL is None else packing.packed(kind_BL)
        kind = self.kind.weight[0] if kind_BL is None else self.kind(kind_BL)
        return self.dropout(self.projection(self.norm(self.token(ids_BL) + kind + self.place(at_BL))))  # type: ignore[no-any-return]


class Encoder(TextEncoder):
    """A stack of blocks over `Words`, with as many of the three heads as the config asks for."""

    config: EncoderConfig
    offset: ClassVar[int] = 0  # rows of the table of places before the first
    projected: ClassVar[bool] = False  # a linear map after the embedding

    def __init__(self, config: EncoderConfig):
        super().__init__()
        c = self.config = config
        self.activation = ACTIVATIONS[c.activation]
        norm = partial(LayerNorm, eps=c.eps)

        def block(layer: int) -> Block:
            thinking = FeedForward(c.width, c.hidden, self.activation)
            return Block(c.width, self._mixer(layer), thinking, placement="post", norm=norm, dropout=c.dropout)

        self.embedding = Words(c, self.offset, self.projected)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.pooler = nn.Linear(c.width, c.width) if c.pooler else None
        self.speaker = nn.Sequential(nn.Linear(c.width, c.width), norm(c.width)) if c.words else None
        self.word_bias = nn.Parameter(torch.zeros(c.vocab)) if c.words else None
        self.follower = nn.Linear(c.width, 2) if c.sentences else None
        truncated(self)

    def _mixer(self, layer: int) -> nn.Module:
        """What mixes the tokens in this layer."""
        raise NotImplementedError

    def features(self, ids_BL: Tensor, n_B: Tensor | None = None, kind_BL: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        self.check(ids_BL, n_B, kind_BL)
        inside = packing
        if inside is None and n_B is not None:
            inside = Packing.of(n_B, ids_BL.shape[1])
        x_BLD, pattern = self.embedding(ids_BL, kind_BL, inside), full if n_B is None else lengths(n_B)
        for block in self.blocks:
            x_BLD = block(x_BLD, pattern, packing=inside)
        return x_BLD if inside is packing or inside is None else inside.pad(x_BLD)

    def spoken(self, x: Tensor) -> Tensor:
        if self.speaker is None:
            raise NotSupported(f"this {type(self).__name__} has no head for hidden words; build it with words=True, and train that head")
        transform, norm = self.speaker
        return norm(self.activation(applied(transform, x)))  # type: ignore[no-any-return,arg-type]

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.embedding.token.weight, self.word_bias

    def pooled(self, x_BLD: Tensor) -> Tensor:
        """y_BD: what the pooler makes of the first token; without a pooler its features as they are."""
        return x_BLD[:, 0] if self.pooler is None else torch.tanh(self.pooler(x_BLD[:, 0]))

    def follows(self, y_BD: Tensor) -> Tensor:
        """logits_B2 of what `pooled` gave: 0, the second text follows the first; 1, it does not."""
        if self.follower is None:
            raise NotSupported(f"this {type(self).__name__} has no head for sentences; build it with sentences=True, and train that head")
        return self.follower(y_BD)  # type: ignore[no-any-return]

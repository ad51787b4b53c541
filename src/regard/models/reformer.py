r"""Reformer: very long texts in little memory, by attention within hash buckets and reversible layers.

$$y_1 = x_1 + \mathrm{attention}(N(x_2)) \qquad y_2 = x_2 + \mathrm{FFN}(N(y_1)) \qquad x_1 = x_2 = E[\mathrm{id}_t] + P_t \text{ initially}$$
$$\mathrm{features} = N([y_1; y_2])$$
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..attention import SoftmaxAttention
from ..attention.lsh_published import PublishedLSH
from ..errors import BadConfig, NotSupported, ShapeError
from ..layers import ACTIVATIONS, Dropout, FeedForward, LayerNorm, MultiHead, Packing, Reversible, ReversibleBlock, init_truncated
from ..patterns import Pattern, causal, full, lengths
from ..patterns.blocks import chunk_ring
from .encoder import TextEncoder, TextEncoderConfig
from .model import Count, ModelFacts, Positive, Probability, Size


@dataclass(frozen=True, kw_only=True)
class ReformerConfig(TextEncoderConfig):
    max_length: Size = 4096
    width: Size = 256  # width of the model: features per token between layers
    heads: Size = 4  # attention heads per layer
    head_dim: Size = 64  # size of each head
    hidden: Size = 512  # width inside the feed-forward layers
    layers: tuple[str, ...] = ("local", "lsh", "local", "lsh")  # mechanism of each layer
    axial: tuple[Size, ...] = ()  # rows, columns, features per row, features per column; empty: a table of `max_length` positions
    chunk: tuple[Size, Size] = (64, 64)  # chunk size of local and of lsh layers
    before: tuple[Count, Count] = (1, 1)  # chunks before a token's own that it attends to, of local and lsh layers
    after: tuple[Count, Count] = (0, 0)  # chunks after it
    rounds: Size = 1  # hash rounds of lsh layers
    buckets: tuple[Size, ...] = ()  # number of hash buckets, or its factors; empty: about two per chunk of the text
    seed: tuple[int, ...] = (0,)  # seed of the hash functions; empty: drawn again at each call
    dropout: Probability = 0.05  # dropout rate
    attention_dropout: Probability = 0.05  # dropout of attention weights, in local layers only
    activation: str = "relu"  # activation of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    eps: Positive = 1e-12  # epsilon of the layer norms
    causal: bool = False  # causal, as a language model
    mlm_head: bool = True  # an output projection to the vocabulary

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("activation", ACTIVATIONS)
        if not self.layers or set(self.layers) - {"local", "lsh"}:
            raise BadConfig(f"ReformerConfig: layers={self.layers!r}; expected 'local' or 'lsh' for each layer")
        if self.axial and (len(self.axial) != 4 or self.axial[0] * self.axial[1] < self.max_length or sum(self.axial[2:]) != self.width):
            raise BadConfig(
                f"ReformerConfig: axial={self.axial!r}; expected rows and columns for {self.max_length} positions, and features that add up to {self.width}"
            )


class Reformer(TextEncoder):
    """Hashed and local attention in turn, in reversible blocks.

    Cost:    time O(R·L·(c·K + log L)·H + L·D·F) per layer for R rounds and chunks of c; activation memory of one layer, whatever the depth.
    Use it:  for texts of tens of thousands of tokens where memory is the limit.
    Avoid it: below a few thousand tokens; where results must not depend on random hashes.
    Limits:  at most `max_length` tokens; no pooler (`pooled` is the first token) and no NSP head. With `causal` it cannot decode step by step.
    Paper:   Kitaev, Kaiser & Levskaya 2020, "Reformer: the efficient transformer", arXiv:2001.04451.
    We differ: attention is that of the published code, quirks included, so that checkpoints give the published numbers: the first chunk
             attends to the last one, of the previous round if there are several; pairs found in several rounds count several times.
             `LSHAttention` has neither quirk. In float32 transformers rounds the sum over rounds for tokens that attend only to
             themselves (the first of a causal text) and scales their output by 0.998; here the factor is 1.
    """

    facts = ModelFacts(name="reformer", year=2020, title="Reformer: the efficient transformer", paper="arXiv:2001.04451")
    Config = ReformerConfig
    config: ReformerConfig

    def _build(self) -> None:
        c = self.config
        norm = partial(LayerNorm, eps=c.eps)

        def block(kind: str) -> ReversibleBlock:
            feedforward = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation], dropout=c.dropout)
            return ReversibleBlock(c.width, self._mixer(kind), feedforward, norm=norm, dropout=c.dropout)

        self.token = nn.Embedding(c.vocab_size, c.width)
        shapes = [(c.axial[0], c.axial[2]), (c.axial[1], c.axial[3])] if c.axial else [(c.max_length, c.width)]
        self.positions = nn.ModuleList(nn.Embedding(*shape) for shape in shapes)
        self.dropout = Dropout(c.dropout)
        self.stack = Reversible(block(kind) for kind in c.layers)
        self.norm = norm(2 * c.width)
        self.output = nn.Linear(2 * c.width, c.vocab_size, bias=False) if c.mlm_head else None
        init_truncated(self)

    def _mixer(self, kind: str) -> MultiHead:
        c = self.config
        used = tuple(chunk for chunk, name in zip(c.chunk, ("local", "lsh"), strict=True) if name in c.layers)
        if kind == "local":
            around, softmax = chunk_ring(c.chunk[0], c.before[0], c.after[0], used), SoftmaxAttention(dropout=c.attention_dropout)
            return MultiHead(c.width, c.heads, softmax, head_dim=c.head_dim, bias=False, within=around)
        seed = c.seed[0] if c.seed else None
        attention = PublishedLSH(c.rounds, c.chunk[1], c.buckets, (c.before[1], c.after[1]), seed, c.max_length, used)
        return MultiHead(c.width, c.heads, attention, head_dim=c.head_dim, bias=False, shared_qk=True)

    def features(
        self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None, packing: Packing | None = None
    ) -> Tensor:
        """x_BLD, of twice the width. There are no segment embeddings."""
        self.check(ids_BL, n_B, segment_BL)
        if segment_BL is not None and bool((segment_BL != 0).any()):
            raise NotSupported("Reformer has no segment embeddings; put a separator token between the two texts and leave out segment_BL")
        x_BLD = self.dropout(self.token(ids_BL)) + self.dropout(self._position_embeddings(ids_BL.shape[1]))
        pattern: Pattern = causal if self.config.causal else full
        if n_B is not None:
            pattern = pattern & lengths(n_B)
        x_BLD = self.dropout(self.norm(torch.cat(self.stack(x_BLD, x_BLD, pattern), -1)))
        return x_BLD if packing is None else packing.pack(x_BLD)

    def _position_embeddings(self, length: int) -> Tensor:
        """The embedding of each position, x_LD."""
        c, device = self.config, self.token.weight.device
        if length > c.max_length:
            raise ShapeError(
                f"the text has {length} tokens, and the model has {c.max_length} positions; truncate the text, or build the model with a larger max_length"
            )
        at_L = torch.arange(length, device=device)
        if not c.axial:
            return self.positions[0](at_L)
        row, column = self.positions
        return torch.cat([row(at_L.div(c.axial[1], rounding_mode="floor")), column(at_L % c.axial[1])], -1)

    def head(self) -> tuple[Tensor, Tensor | None]:
        if self.output is None:
            raise NotSupported("this Reformer has no MLM head; build it with mlm_head=True and train that head")
        return self.output.weight, None

    def pooled(self, x_BLD: Tensor) -> Tensor:
        return x_BLD[:, 0]

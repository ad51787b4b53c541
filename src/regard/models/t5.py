r"""T5: one text-to-text transformer for all tasks; relative positions as a learned bias, scores without a scale.

$$s_{ij} = q_i^\top k_j + t_h[\mathrm{bucket}(j - i)] \qquad x \leftarrow x + f(R(x)) \qquad p = \mathrm{softmax}(E\,R(x) / \sqrt{D})$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from torch import nn

from ..errors import BadConfig
from ..layers import Block, Embedding, FeedForward, MultiHead, RMSNorm, gelu_tanh, init_xavier, relu
from ..layers.activations import Gated
from ..layers.positions import Buckets
from ..layers.positionwise import Scale
from .model import ModelFacts, Positive, Size, Sizes, build_heads
from .transformer import Transformer, TransformerConfig


@dataclass(frozen=True, kw_only=True)
class T5Config(TransformerConfig):
    head_dim: Size = 64  # size of a head
    buckets: Size = 32  # ranges of distances, with a bias each
    furthest: Size = 128  # distances beyond it share a bias
    gated: bool = False  # a gated gelu (T5 1.1) in place of relu
    untied: bool = False  # an output projection of its own (T5 1.1), and no factor 1/√D before it
    scaled_output: bool = True  # the factor 1/√D before a tied output projection; transformers' mT5 has none
    eps: Positive = 1e-6  # epsilon of the RMS norms
    position: str = "none"
    scaled: bool = False
    attention: str | tuple[str, str, str] = "softmax(scale=1.0)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.placement, self.position, self.tied, self.output_bias, self.scaled) != ("pre", "none", "all", False, False):
            raise BadConfig(
                f"T5Config: placement={self.placement!r}, position={self.position!r}, tied={self.tied!r}, output_bias={self.output_bias}, "
                f"scaled={self.scaled}; expected 'pre', 'none', 'all', False, False: choose model=transformer for others"
            )
        if self.furthest > 2**20:
            raise BadConfig(f"T5Config: furthest={self.furthest}; expected at most {2**20}")

    def _check_heads(self) -> None:
        """Any number: the size of a head is a setting of its own."""


SMALL = T5Config(
    source_vocab_size=32_128, target_vocab_size=32_128, width=512, heads=8, head_dim=64, depth=(6, 6), hidden=2048, max_length=512
)


class T5(Transformer):
    """A pre-norm transformer with RMS norms, no biases, and a learned bias per range of distances, which all layers of a stack share.

    Cost:    as `Transformer`.
    Use it:  to load the published checkpoints, which translate, summarise and answer.
    Avoid it: with mechanisms that take no bias.
    Limits:  the decoder's mechanism must be causal and decode step by step.
    Paper:   Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text transformer", arXiv:1910.10683.
    """

    facts = ModelFacts(
        name="t5",
        year=2019,
        title="Exploring the limits of transfer learning with a unified text-to-text transformer",
        paper="arXiv:1910.10683",
    )
    Config = T5Config
    config: T5Config
    sizes: ClassVar[Sizes] = {
        "t5-small": SMALL,  # 60,506,624 parameters
        "t5-base": replace(SMALL, width=768, heads=12, depth=(12, 12), hidden=3072),  # 222,903,552
        "t5-v1.1-small": replace(SMALL, heads=6, depth=(8, 8), hidden=1024, gated=True, untied=True),  # 76,961,152
    }

    def _build(self) -> None:
        c, norm = self.config, partial(RMSNorm, eps=self.config.eps)
        of_encoder, of_decoder, across = tuple(c.attention)

        def heads(line: str, **options: Any) -> MultiHead:
            return build_heads(line, c.width, c.heads, c.max_length, head_dim=c.head_dim, bias=False, **options)

        def stack(depth: int, line: str, causal: bool) -> nn.ModuleList:
            position = Buckets(c.heads, buckets=c.buckets, furthest=c.furthest, causal=causal)
            return nn.ModuleList(
                Block(
                    c.width,
                    heads(line, position=position),
                    FeedForward(c.width, c.hidden, Gated(gelu_tanh) if c.gated else relu, bias=False, dropout=c.dropout),
                    cross=heads(across) if causal else None,
                    norm=norm,
                    dropout=c.dropout,
                )
                for _ in range(depth)
            )

        self.embedding, self.source_embedding = Embedding(c.target_vocab_size, c.width, dropout=c.dropout), None
        self.encoder, self.decoder = stack(c.depth[0], of_encoder, False), stack(c.depth[1], of_decoder, True)
        self.encoder_norm = norm(c.width)
        self.decoder_norm = nn.Sequential(
            norm(c.width), Scale(1.0 if c.untied or not c.scaled_output else c.width**-0.5)
        )  # of features, so that the output projection is the embedding
        self.output, self.output_bias = nn.Linear(c.width, c.target_vocab_size, bias=False) if c.untied else None, None
        init_xavier(self)

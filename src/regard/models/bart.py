r"""BART: a transformer that is pretrained to restore damaged text; its embeddings are normed, and its positions learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..errors import BadConfig
from ..layers import Dropout, Embedding, LayerNorm, Learned, Packing, init_xavier
from ..layers.positions import Offset
from .model import ModelFacts, Size, Sizes
from .transformer import Transformer, TransformerConfig


@dataclass(frozen=True, kw_only=True)
class BartConfig(TransformerConfig):
    max_length: Size = 1024
    placement: str = "post"  # placement of the norms; mBART's is "pre"
    position: str = "learned"
    activation: str = "gelu"
    output_bias: bool = True
    scaled: bool = False  # token embeddings multiplied by the square root of the width

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.placement == "sandwich" or (self.position, self.tied) != ("learned", "all"):
            raise BadConfig(
                f"BartConfig: placement={self.placement!r}, position={self.position!r}, tied={self.tied!r}; expected 'post' or 'pre', 'learned', "
                "'all': choose model=transformer for others"
            )


BASE = BartConfig(source_vocab_size=50_265, target_vocab_size=50_265, width=768, heads=12, depth=(6, 6), hidden=3072)


class BartEmbedding(Embedding):
    """Token and position embeddings, normed. The first two rows of the published position tables belong to no position."""

    def __init__(self, config: BartConfig, vocab_size: int):
        super().__init__(vocab_size, config.width, Learned(config.max_length, config.width, offset=2), scaled=config.scaled)
        self.norm, self.after = LayerNorm(config.width), Dropout(config.dropout)

    def forward(self, ids_BL: Tensor, at: Offset | Tensor = 0, packing: Packing | None = None) -> Tensor:
        return self.after(self.norm(super().forward(ids_BL, at, packing)))


class Bart(Transformer):
    """A post-norm transformer (mBART: pre-norm) with learned positions and normed embeddings; encoder and decoder share the token embedding.

    Cost:    as `Transformer`.
    Use it:  to load the published checkpoints: summaries, paraphrases, restored text.
    Avoid it: for new models; `Transformer` trains with less care.
    Limits:  at most `max_length` positions.
    Paper:   Lewis et al. 2020, "BART: denoising sequence-to-sequence pre-training", arXiv:1910.13461. mBART:
             Liu et al. 2020, "Multilingual denoising pre-training for neural machine translation", arXiv:2001.08210.
    """

    facts = ModelFacts(name="bart", year=2019, title="BART: denoising sequence-to-sequence pre-training", paper="arXiv:1910.13461")
    Config = BartConfig
    config: BartConfig
    sizes: ClassVar[Sizes] = {
        "bart-base": BASE,  # 139,470,681 parameters
        "bart-large": replace(BASE, width=1024, heads=16, depth=(12, 12), hidden=4096),  # 406,341,721
    }

    def _build(self) -> None:
        super()._build()
        self.source_embedding = self._embedding(self.config.source_vocab_size)
        self.source_embedding.token = self.embedding.token
        init_xavier(self)

    def _embedding(self, vocab_size: int) -> Embedding:
        return BartEmbedding(self.config, vocab_size)

r"""MPNet: BERT with a learned bias per range of distances, beside learned positions; no segments.

$$x_t = N(E[\mathrm{id}_t] + P_t) \qquad s_{ij} = q_i^\top k_j / \sqrt{K} + t_h[\mathrm{bucket}(j - i)]$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..layers import MultiHead
from ..layers.positions import Buckets
from .bert import Bert, BertConfig
from .model import Count, ModelFacts, Size, Sizes, build_heads


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(BertConfig):
    segments: Count = 0  # number of segment embeddings; 0: none
    padding: Count | None = 1  # id of tokens without a position: positions count from padding + 1 and leave them out
    buckets: Size = 32  # ranges of distances, with a bias each
    nsp_head: bool = False


BASE = MPNetConfig(vocab_size=30_527, max_length=512, width=768, heads=12, depth=12, hidden=3072)


class MPNet(Bert):
    """BERT's encoder without segments, with a bias of the scores per range of distances, which all layers share; any mechanism that takes one.

    Cost:    as `Bert`.
    Use it:  to load sentence encoders such as all-mpnet-base-v2.
    Avoid it: with mechanisms that take no bias.
    Limits:  as `Bert`. Its pretraining, by permuted predictions, is not here: `regard train masked` masks.
    Paper:   Song et al. 2020, "MPNet: masked and permuted pre-training for language understanding", arXiv:2004.09297.
    """

    facts = ModelFacts(
        name="mpnet", year=2020, title="MPNet: masked and permuted pre-training for language understanding", paper="arXiv:2004.09297"
    )
    Config = MPNetConfig
    config: MPNetConfig
    sizes: ClassVar[Sizes] = {"mpnet-base": BASE}  # 110,109,119 parameters, pooler included

    def _build(self) -> None:
        self._buckets = (
            Buckets(self.config.heads, buckets=self.config.buckets, furthest=4 * self.config.buckets),
        )  # in a tuple: no submodule
        super()._build()
        del self._buckets

    def _mixer(self, layer: int) -> MultiHead:
        c = self.config
        return build_heads(c.attention, c.width, c.heads, c.max_length, position=self._buckets[0])

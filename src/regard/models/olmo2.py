r"""OLMo 2: Llama with norms after each sublayer instead of before, and norms of all queries and of all keys of a token.

$$x \leftarrow x + R(\mathrm{MHA}(x)),\; x \leftarrow x + R(\mathrm{FFN}(x)) \qquad q = R(W_q x),\; k = R(W_k x)$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..layers import Block, MultiHead, RMSNorm
from .llama import Llama, LlamaConfig
from .model import ModelFacts, Sizes


@dataclass(frozen=True, kw_only=True)
class Olmo2Config(LlamaConfig):
    qk_norm: bool = True  # an RMS norm of the queries and of the keys, over the features of all heads


SMALL = Olmo2Config(
    vocab_size=100_352, context_length=4096, width=2048, heads=16, kv_heads=16, head_dim=128, hidden=8192, depth=16, base=500_000.0
)


class AllHeadsNorm(RMSNorm):
    """An RMS norm over the features of all heads.

    Args:
        heads: number of heads H.
        head_dim: features of each.
        eps: added to the mean square.

    Shape: x_BLHK → out_BLHK.
    """

    def __init__(self, heads: int, head_dim: int, eps: float = 1e-6):
        super().__init__(heads * head_dim, eps)

    def forward(self, x_BLHK: Tensor) -> Tensor:
        return super().forward(x_BLHK.flatten(-2)).view_as(x_BLHK)


class Olmo2(Llama):
    """Causal blocks as Llama's, with norms of what each sublayer adds, and of queries and keys; any mechanism.

    Cost:    as `Llama`.
    Use it:  to load OLMo 2, which comes with its data and with checkpoints from all of training.
    Avoid it: without norms of queries and keys, on which its training relies.
    Limits:  as `Llama`.
    Paper:   OLMo Team 2025, "2 OLMo 2 Furious", arXiv:2501.00656.
    """

    facts = ModelFacts(name="olmo2", year=2025, title="2 OLMo 2 Furious", paper="arXiv:2501.00656")
    Config = Olmo2Config
    config: Olmo2Config
    sizes: ClassVar[Sizes] = {
        "olmo-2-1b": SMALL,  # 1,484,916,736 parameters
        "olmo-2-7b": replace(SMALL, width=4096, heads=32, kv_heads=32, hidden=11_008, depth=32),  # 7,298,617,344
    }

    def _heads(self, layer: int) -> MultiHead:
        c, heads = self.config, super()._heads(layer)
        if c.qk_norm:
            heads.q_norm, heads.k_norm = AllHeadsNorm(c.heads, c.head_dim, c.eps), AllHeadsNorm(c.kv_heads, c.head_dim, c.eps)
        return heads

    def _block(self, layer: int) -> Block:
        c = self.config
        block = Block(c.width, self._heads(layer), self._feedforward(layer), placement="sandwich", norm=self._norm, dropout=c.dropout)
        for around in (block.around_mixer, block.around_feedforward):
            if around is not None:
                around.before = None
        return block

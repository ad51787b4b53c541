r"""Granite: Llama with fixed factors on embeddings, residual connections, scores and logits, so that settings tuned at one size fit others.

$$x_t = m_e\,E[\mathrm{id}_t] \qquad x \leftarrow x + m_r\,\mathrm{MHA}(R(x)),\; x \leftarrow x + m_r\,\mathrm{FFN}(R(x)) \qquad \mathrm{logits} = W R(x) / m_l$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..layers import Block
from ..layers.positionwise import Scale
from .llama import Llama, LlamaConfig
from .model import ModelFacts, Positive, Sizes


@dataclass(frozen=True, kw_only=True)
class GraniteConfig(LlamaConfig):
    embedding_scale: Positive = 1.0  # factor of the embeddings, m_e
    residual_scale: Positive = 1.0  # factor of what each sublayer adds, m_r
    logit_divisor: Positive = 1.0  # logits are divided by it, m_l


# IBM 2024, the smallest dense one
GRANITE_3 = GraniteConfig(
    vocab_size=49_155, context_length=4096, width=2048, heads=32, kv_heads=8, head_dim=64, hidden=8192, depth=40, eps=1e-5, tied=True,
    embedding_scale=12.0, residual_scale=0.22, logit_divisor=8.0, attention="softmax(scale=0.015625)",
)  # fmt: skip


class Granite(Llama):
    """Causal blocks as Llama's, with factors after embeddings and sublayers and before the logits; any mechanism.

    Cost:    as `Llama`.
    Use it:  to load Granite 3 and 4 (dense ones).
    Avoid it: for new models; the factors matter where settings are transferred between sizes.
    Limits:  as `Llama`.
    Paper:   Granite Team, IBM 2024, "Granite 3.0 language models". The factors: Yang et al. 2022, "Tensor programs V: tuning large
             neural networks via zero-shot hyperparameter transfer", arXiv:2203.03466.
    """

    facts = ModelFacts(name="granite", year=2024, title="Granite 3.0 language models", paper="IBM 2024")
    Config = GraniteConfig
    config: GraniteConfig
    sizes: ClassVar[Sizes] = {"granite-3-2b": GRANITE_3}  # 2,533,531,648 parameters

    def _build(self) -> None:
        super()._build()
        self.embedding.scale = self.config.embedding_scale
        self.norm = nn.Sequential(
            self.norm, Scale(1 / self.config.logit_divisor)
        )  # of features, so that the output projection stays as it is

    def _block(self, layer: int) -> Block:
        block = super()._block(layer)
        for around in (block.around_mixer, block.around_feedforward):
            if around is not None:
                around.after = Scale(self.config.residual_scale)
        return block

r"""Mixtral: Llama with a mixture of experts for each feed-forward layer: more parameters at the cost of few.

$$x \leftarrow x + \mathrm{MHA}(R(x)),\; x \leftarrow x + \sum_{e \in T(x)} g_e(x)\,\mathrm{FFN}_e(R(x))$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..errors import BadConfig
from ..layers.experts import Experts
from .llama import Llama, LlamaConfig
from .model import ModelFacts, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(LlamaConfig):
    hidden: Size = 688  # width inside each expert
    experts: Size = 8  # experts per layer
    chosen: Size = 2  # experts per token
    renormalized: bool = True  # weights of a token's experts sum to one; those of Qwen 3 may not

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen > self.experts:
            raise BadConfig(f"{type(self).__name__}: chosen={self.chosen} of experts={self.experts}; expected at most that many")


MIXTRAL = MixtralConfig(
    vocab_size=32_000, context_length=32_768, width=4096, heads=32, kv_heads=8, head_dim=128, hidden=14_336, depth=32, eps=1e-5, base=1e6
)
# Yang et al. 2025, arXiv:2505.09388
QWEN_3 = MixtralConfig(
    vocab_size=151_936, context_length=40_960, width=2048, heads=32, kv_heads=4, head_dim=128, hidden=768, depth=48, base=1e6, qk_norm=True,
    experts=128, chosen=8,
)  # fmt: skip


class Mixtral(Llama):
    """Causal blocks as Llama's, in which a router chooses a few of many feed-forward layers for each token; any mechanism.

    Cost:    time as a `Llama` with `chosen` times the hidden features; memory for all experts.
    Use it:  to load Mixtral and Qwen 3's mixtures of experts.
    Avoid it: to train from scratch: there is no loss that balances the experts' load.
    Limits:  as `Llama`.
    Paper:   Jiang et al. 2024, "Mixtral of experts", arXiv:2401.04088.
    """

    facts = ModelFacts(name="mixtral", year=2024, title="Mixtral of experts", paper="arXiv:2401.04088")
    Config = MixtralConfig
    config: MixtralConfig
    sizes: ClassVar[Sizes] = {
        "mixtral-8x7b": MIXTRAL,  # 46,702,792,704 parameters
        "qwen3-30b-a3b": QWEN_3,  # 30,532,122,624
    }

    def _feedforward(self, layer: int) -> nn.Module:
        c = self.config
        return Experts(c.width, c.hidden, c.experts, c.chosen, renormalized=c.renormalized)

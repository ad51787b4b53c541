r"""gpt-oss: a mixture of experts with attention sinks, windows in every second layer, biases, and a clamped gate.

$$o_i = \sum_j \frac{e^{s_{ij}}}{e^{z_h} + \sum_{j'} e^{s_{ij'}}}\, v_j \qquad \mathrm{FFN}_e(x) = W_2\,\big(g\,\sigma(1.702\,g) \odot (v + 1)\big) + b_2$$

z_h is a learned logit per head that takes up weight without a value; g and v are clamped to 7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from ..bounds import Finite
from ..layers.experts import ClampedSwiGLU, Experts
from .mixtral import Mixtral, MixtralConfig
from .model import ModelFacts, Positive, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(MixtralConfig):
    chosen: Size = 4  # experts per token
    qkv_bias: bool = True
    out_bias: bool = True
    alpha: Finite = 1.702  # factor inside the sigmoid of the gate
    limit: Positive = 7.0  # largest gate, and largest absolute value


SMALL = GptOssConfig(
    vocab_size=201_088, context_length=131_072, width=2880, heads=64, kv_heads=8, head_dim=64, hidden=2880, depth=24, eps=1e-5, base=150_000.0,
    stretch=("yarn", 32.0, 1.0, 32.0, 4096, 1.3465735902799727, 0), experts=32, attention=("local(radius=127, sinks=64)", "softmax(sinks=64)"),
)  # fmt: skip


class GptOss(Mixtral):
    """Causal blocks with a mixture of experts, attention sinks and windows in every second layer; any mechanism.

    Cost:    as `Mixtral`; layers with a window of w tokens take O(L·w·D) and keep w keys.
    Use it:  to load gpt-oss, in float32 or bfloat16; its 4-bit files are not read.
    Avoid it: to train from scratch: there is no loss that balances the experts' load.
    Limits:  as `Llama`. Sinks belong to the mechanism: `softmax(sinks=64)` has one for each of 64 heads.
    Paper:   OpenAI 2025, "gpt-oss-120b & gpt-oss-20b model card", arXiv:2508.10925.
    """

    facts = ModelFacts(name="gpt_oss", year=2025, title="gpt-oss-120b & gpt-oss-20b model card", paper="arXiv:2508.10925")
    Config = GptOssConfig
    config: GptOssConfig
    sizes: ClassVar[Sizes] = {
        "gpt-oss-20b": SMALL,  # 20,914,757,184 parameters
        "gpt-oss-120b": replace(SMALL, depth=36, experts=128),  # 116,829,156,672
    }

    def _feedforward(self, layer: int) -> nn.Module:
        c = self.config
        activation = ClampedSwiGLU(c.alpha, c.limit)
        return Experts(c.width, c.hidden, c.experts, c.chosen, activation=activation, bias=True, renormalized=c.renormalized)

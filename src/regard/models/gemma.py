r"""Gemma 2 and 3: windows and full attention in turn, norms before and after each part, and bounded scores or normed queries and keys.

$$x \leftarrow x + R_2(\mathrm{MHA}(R_1(x))),\; x \leftarrow x + R_4(\mathrm{FFN}(R_3(x))) \qquad R(x) = (1 + g)\, x \big/ \sqrt{\overline{x^2} + ε} \qquad
  \mathrm{logits} = c \tanh(E x / c)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import LocalAttention
from ..errors import BadConfig
from ..kernels import float32_or_wider
from ..layers import Block, Embedding, FeedForward, MultiHead, Rotary, gelu_tanh, init_gpt
from ..layers.activations import Gated
from ..layers.positions.scaling import Stretch, check_stretch
from ..layers.spec import Spec
from .language import Decoder, DecoderConfig, layer_heads
from .model import ModelFacts, Positive, Probability, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(DecoderConfig):
    context_length: Size = 8192  # not a limit: for mechanisms that need a length
    kv_heads: Size = 4  # heads of keys and values, a divisor of `heads`
    head_dim: Size = 64  # size of a head
    hidden: Size = 688  # width inside the feed-forward layers
    base: Positive = 10_000.0  # base of the rotary angles
    local_base: Positive = 10_000.0  # base of the rotary angles in layers with a window
    stretch: Stretch = ()  # scaling of the rotary angles in layers without a window; see `positions.scaling`
    eps: Positive = 1e-6  # epsilon of the RMS norms
    placement: str = "sandwich"  # placement of the norms; the first Gemma's is "pre"
    qk_norm: bool = False  # an RMS norm of each head's queries and keys; Gemma 3 has it
    logit_softcap: Positive | None = None  # logits are bounded to ± this number; Gemma 2 has 30
    tied: bool = True  # tied input and output embeddings
    dropout: Probability = 0.0  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stretch(self.stretch, self.head_dim)
        self._one_of("placement", ("pre", "sandwich"))
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise BadConfig(
                f"GemmaConfig: heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}; expected kv_heads to divide heads, "
                "and an even head_dim for rotary positions"
            )


# Gemma Team 2024 and 2025, the smallest of each
GEMMA_2 = GemmaConfig(
    vocab_size=256_000, width=2304, heads=8, kv_heads=4, head_dim=256, hidden=9216, depth=26, logit_softcap=30.0,
    attention=("local(radius=4095, scale=0.0625, softcap=50.0)", "softmax(scale=0.0625, softcap=50.0)"),
)  # fmt: skip
GEMMA_3 = GemmaConfig(
    vocab_size=262_144, context_length=32_768, width=1152, heads=4, kv_heads=1, head_dim=256, hidden=6912, depth=26, base=1e6, qk_norm=True,
    attention=(*["local(radius=511, scale=0.0625)"] * 5, "softmax(scale=0.0625)"),
)  # fmt: skip


class ShiftedRMSNorm(nn.Module):
    """An RMS norm whose gain is 1 + weight, in float32 at least."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        precise = float32_or_wider(x)
        precise = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + self.eps)
        return (precise * (1 + self.weight.to(precise.dtype))).to(x.dtype)


class Gemma(Decoder):
    """Causal blocks with rotary positions, norms around each part, gated gelu, and windows in most layers; any mechanism.

    Cost:    as `Llama`; layers with a window of w tokens take O(L·w·D) and keep w keys.
    Use it:  to load Gemma, Gemma 2 and the text part of Gemma 3.
    Avoid it: with mechanisms that need one key head per query head, unless kv_heads = heads.
    Limits:  mechanisms must be causal, and must decode step by step for `start`.
    Paper:   Gemma Team 2024, "Gemma 2: improving open language models at a practical size", arXiv:2408.00118; 2025, "Gemma 3
             technical report", arXiv:2503.19786. The first: 2024, "Gemma: open models based on Gemini research and technology",
             arXiv:2403.08295.
    """

    facts = ModelFacts(
        name="gemma", year=2024, title="Gemma 2: improving open language models at a practical size", paper="arXiv:2408.00118"
    )
    Config = GemmaConfig
    config: GemmaConfig
    sizes: ClassVar[Sizes] = {
        "gemma-2-2b": GEMMA_2,  # 2,614,341,888 parameters
        "gemma-3-1b": GEMMA_3,  # 999,885,952
    }

    def _build(self) -> None:
        c = self.config
        norm = partial(ShiftedRMSNorm, eps=c.eps)

        def heads(layer: int) -> MultiHead:
            local = Spec.read(c.attention[layer % len(c.attention)]).kind is LocalAttention
            rotary = Rotary(base=c.local_base) if local else Rotary(base=c.base, stretch=c.stretch)
            sizes = {"head_dim": c.head_dim, "kv_heads": c.kv_heads}
            return layer_heads(c, layer, **sizes, bias=False, qk_norm=norm if c.qk_norm else None, position=rotary)

        def block(layer: int) -> Block:
            feedforward = FeedForward(c.width, c.hidden, Gated(gelu_tanh), bias=False)
            return Block(c.width, heads(layer), feedforward, placement=c.placement, norm=norm, dropout=c.dropout)  # type: ignore[arg-type]

        self.embedding = Embedding(c.vocab_size, c.width, scaled=True, dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm = norm(c.width)
        self.output = None if c.tied else nn.Linear(c.width, c.vocab_size, bias=False)
        init_gpt(self, c.depth)

    @property
    def logit_softcap(self) -> float | None:
        return self.config.logit_softcap

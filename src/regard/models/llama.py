r"""The current standard decoder: rotary positions, RMS norms, gated feed-forward layers, fewer key heads than query heads.

$$x \leftarrow x + \mathrm{MHA}(R(x)),\; x \leftarrow x + W_2\big(\mathrm{silu}(W_1 R(x)) \odot W_3 R(x)\big) \qquad
  R(x) = g\, x \big/ \sqrt{\overline{x^2} + ε}$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from ..errors import BadConfig
from ..layers import Block, Embedding, FeedForward, LayerNorm, MultiHead, RMSNorm, Rotary, init_gpt, swiglu
from ..layers.positions.scaling import Stretch, check_stretch
from .language import Decoder, DecoderConfig, layer_heads
from .model import ModelFacts, Positive, Probability, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    context_length: Size = 2048  # not a limit: for mechanisms that need a length
    kv_heads: Size = 4  # heads of keys and values, a divisor of `heads`
    head_dim: Size = 64  # size of each head
    hidden: Size = 688  # width inside the feed-forward layers: 8/3 of the width keeps the parameter count of an ungated one
    base: Positive = 10_000.0  # base of the rotary angles
    stretch: Stretch = ()  # scaling of the rotary angles, for texts longer than in training; see `positions.scaling`
    eps: Positive = 1e-6  # epsilon of the RMS norms
    qkv_bias: bool = False  # Qwen 2 has it
    out_bias: bool = False  # a bias of the projection after attention
    qk_norm: bool = False  # an RMS norm of each head's queries and keys; Qwen 3 has it
    rotated: tuple[bool, ...] = (True,)  # layers, in turn, that have rotary embeddings; SmolLM 3 leaves out every fourth
    norm: str = "rms"  # norms: "rms", or "layer" (StableLM)
    part: Positive = 1.0  # share of each head's features that rotary embeddings rotate; Phi 3 and 4 have some with less
    tied: bool = False  # tied input and output embeddings
    dropout: Probability = 0.0  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stretch(self.stretch, int(self.head_dim * self.part))
        self._one_of("norm", ("rms", "layer"))
        if not self.rotated:
            raise BadConfig("LlamaConfig: rotated=(); expected true or false for the layers in turn")
        if self.part > 1 or int(self.head_dim * self.part) % 2:
            raise BadConfig(
                f"LlamaConfig: part={self.part} of head_dim={self.head_dim}; expected a share that is an even number of features"
            )
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise BadConfig(
                f"LlamaConfig: heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}; expected kv_heads to divide heads, "
                "and an even head_dim for rotary positions"
            )


def _llama(depth: int, width: int, heads: int, hidden: int) -> LlamaConfig:
    return LlamaConfig(vocab_size=32_000, depth=depth, width=width, heads=heads, kv_heads=heads, head_dim=128, hidden=hidden)


TINY = LlamaConfig(vocab_size=256, context_length=256, depth=4, width=128, heads=4, kv_heads=2, head_dim=32, hidden=344)
# Jiang et al. 2023 (arXiv:2310.06825), without its sliding window of 4,096 tokens
MISTRAL = replace(_llama(32, 4096, 32, 14_336), context_length=32_768, kv_heads=8, eps=1e-5)
LLAMA_3 = replace(MISTRAL, vocab_size=128_256, context_length=8192, base=500_000.0)  # Grattafiori et al. 2024 (arXiv:2407.21783)
# The smallest Qwen 2 (Yang et al. 2024, arXiv:2407.10671)
QWEN_2 = LlamaConfig(
    vocab_size=151_936, context_length=32_768, depth=24, width=896, heads=14, kv_heads=2, hidden=4864, base=1e6, qkv_bias=True, tied=True
)


class Llama(Decoder):
    """Causal blocks with rotary positions, RMS norms, SwiGLU and grouped-query attention; any mechanism.

    Cost:    time O(L²·D + L·D²) per layer; the KV cache holds 2 · kv_heads · head_dim numbers per token and layer.
    Use it:  for new models, for long texts, and to load most of today's checkpoints (Llama, Mistral, Qwen 2 and 3, Phi 3, SmolLM 3, StableLM).
    Avoid it: with mechanisms that need one key head per query head, unless kv_heads = heads.
    Limits:  mechanisms must be causal, and must decode step by step for `start`.
    Paper:   Touvron et al. 2023, "LLaMA: open and efficient foundation language models", arXiv:2302.13971. Grouped queries: Ainslie et
             al. 2023, arXiv:2305.13245.
    """

    facts = ModelFacts(name="llama", year=2023, title="LLaMA: open and efficient foundation language models", paper="arXiv:2302.13971")
    Config = LlamaConfig
    config: LlamaConfig
    sizes: ClassVar[Sizes] = {
        "llama-tiny": TINY,  # trains in minutes on a laptop
        "llama-7b": _llama(32, 4096, 32, 11_008),  # 6,738,415,616 parameters
        "llama-13b": _llama(40, 5120, 40, 13_824),  # 13,015,864,320
        "llama-33b": _llama(60, 6656, 52, 17_920),  # 32,528,943,616
        "llama-65b": _llama(80, 8192, 64, 22_016),  # 65,285,660,672
        "llama-3-8b": LLAMA_3,  # 8,030,261,248
        "llama-3.1-8b": replace(LLAMA_3, context_length=131_072, stretch=(8.0, 1.0, 4.0, 8192)),  # stretched from 8,192 tokens
        "mistral-7b": MISTRAL,  # 7,241,732,096
        "qwen2-0.5b": QWEN_2,  # 494,032,768
    }

    def _build(self) -> None:
        c = self.config
        self.embedding = Embedding(c.vocab_size, c.width, dropout=c.dropout)
        self.blocks = nn.ModuleList(self._block(layer) for layer in range(c.depth))
        self.norm = self._norm(c.width)
        self.output = None if c.tied else nn.Linear(c.width, c.vocab_size, bias=False)
        init_gpt(self, c.depth)

    def _block(self, layer: int) -> Block:
        c = self.config
        return Block(c.width, self._heads(layer), self._feedforward(layer), norm=self._norm, dropout=c.dropout)

    def _heads(self, layer: int) -> MultiHead:
        c = self.config
        rotary = Rotary(base=c.base, part=int(c.head_dim * c.part), stretch=c.stretch) if c.rotated[layer % len(c.rotated)] else None
        options = {"head_dim": c.head_dim, "kv_heads": c.kv_heads, "bias": c.out_bias, "qkv_bias": c.qkv_bias}
        return layer_heads(c, layer, **options, qk_norm=self._norm if c.qk_norm else None, position=rotary)

    def _feedforward(self, layer: int) -> nn.Module:
        """The feed-forward layer of block `layer`."""
        return FeedForward(self.config.width, self.config.hidden, swiglu, bias=False)

    def _norm(self, width: int) -> nn.Module:
        return (LayerNorm if self.config.norm == "layer" else RMSNorm)(width, eps=self.config.eps)

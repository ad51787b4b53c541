r"""The decoder of today: rotary places, root-mean-square norms, gated feed-forward parts, fewer key heads than query heads.

$$x \leftarrow x + \mathrm{MHA}(R(x)),\; x \leftarrow x + W_2\big(\mathrm{silu}(W_1 R(x)) \odot W_3 R(x)\big) \qquad
  R(x) = g\, x \big/ \sqrt{\overline{x^2} + ε}$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from ..errors import BadConfig
from ..layers import Block, Embedding, FeedForward, MultiHead, RMSNorm, Rotary, gpt, swiglu
from ..layers.positions.rotary import check_stretch
from ._decoder import Decoder, DecoderConfig, looking_in
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    length: int = 2048  # nothing ends there; mechanisms that must know a length are made for it
    kv_heads: int = 4  # of keys and values, a divisor of `heads`
    head_width: int = 64
    hidden: int = 688  # of the feed-forward parts: 8/3 of the width keeps their size
    base: int = 10_000  # of the rotary angles
    stretch: tuple[float, ...] = ()  # of these, for texts longer than those learned from; see `Rotary`
    eps: float = 1e-6  # of the norms
    qkv_bias: bool = False  # Qwen 2 has it
    tied: bool = False  # one table for input and output
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stretch(self.stretch)
        if self.heads % self.kv_heads or self.head_width % 2:
            raise BadConfig(
                f"LlamaConfig: heads={self.heads}, kv_heads={self.kv_heads}, head_width={self.head_width}; expected kv_heads to divide heads, "
                "and an even head_width for rotary places"
            )


class Llama(Decoder):
    """Causal blocks with rotary places, RMS norms, SwiGLU and grouped queries; any mechanism in them.

    Cost:    time O(L²·D + L·D²) a layer; a step of decoding keeps kv_heads · head_width numbers twice a token and layer.
    Use it:  for new models, for long texts, and to read most published weights of today (Llama, Mistral, Qwen 2).
    Avoid it: with mechanisms that have one key head a query head only, unless kv_heads = heads.
    Limits:  mechanisms must be causal, and go step by step for `begin`.
    Paper:   Touvron et al. 2023, "LLaMA: open and efficient foundation language models", arXiv:2302.13971. Grouped queries: Ainslie et
             al. 2023, arXiv:2305.13245.
    """

    facts = ModelFacts(name="llama", year=2023, title="LLaMA: open and efficient foundation language models", paper="arXiv:2302.13971")
    Config = LlamaConfig
    config: LlamaConfig

    def __init__(self, config: LlamaConfig):
        super().__init__()
        c = self.config = config
        norm = partial(RMSNorm, eps=c.eps)

        def heads(layer: int) -> MultiHead:
            made = looking_in(
                c, layer, head_width=c.head_width, kv_heads=c.kv_heads, bias=False, position=Rotary(base=c.base, stretch=c.stretch)
            )
            if c.qkv_bias:
                made.qkv = nn.Linear(c.width, sum(made.sizes))
            return made

        def block(layer: int) -> Block:
            return Block(c.width, heads(layer), FeedForward(c.width, c.hidden, swiglu, bias=False), norm=norm, dropout=c.dropout)

        self.embedding = Embedding(c.vocab, c.width, dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm = norm(c.width)
        self.output = None if c.tied else nn.Linear(c.width, c.vocab, bias=False)
        gpt(self, c.depth)


def llama_7b() -> LlamaConfig:
    """6,738,415,616 parameters."""
    return _llama(32, 4096, 32, 11_008)


def llama_13b() -> LlamaConfig:
    """13,015,864,320 parameters."""
    return _llama(40, 5120, 40, 13_824)


def llama_33b() -> LlamaConfig:
    """32,528,943,616 parameters."""
    return _llama(60, 6656, 52, 17_920)


def llama_65b() -> LlamaConfig:
    """65,285,660,672 parameters."""
    return _llama(80, 8192, 64, 22_016)


def llama3_8b() -> LlamaConfig:
    """8,030,261,248 parameters (Grattafiori et al. 2024, arXiv:2407.21783)."""
    return LlamaConfig(
        vocab=128_256, length=8192, depth=32, width=4096, heads=32, kv_heads=8, head_width=128, hidden=14_336, base=500_000, eps=1e-5
    )


def llama31_8b() -> LlamaConfig:
    """The same size, with rotary angles stretched from 8,192 tokens to 131,072."""
    return replace(llama3_8b(), length=131_072, stretch=(8.0, 1.0, 4.0, 8192))


def mistral_7b() -> LlamaConfig:
    """7,241,732,096 parameters (Jiang et al. 2023, arXiv:2310.06825), without its window of 4,096 tokens."""
    return LlamaConfig(vocab=32_000, length=32_768, depth=32, width=4096, heads=32, kv_heads=8, head_width=128, hidden=14_336, eps=1e-5)


def qwen2_half_b() -> LlamaConfig:
    """494,032,768 parameters: the smallest Qwen 2 (Yang et al. 2024, arXiv:2407.10671)."""
    return LlamaConfig(
        vocab=151_936,
        length=32_768,
        depth=24,
        width=896,
        heads=14,
        kv_heads=2,
        head_width=64,
        hidden=4864,
        base=1_000_000,
        qkv_bias=True,
        tied=True,
    )


def llama_tiny(vocab: int = 256) -> LlamaConfig:
    """For minutes on a laptop."""
    return LlamaConfig(vocab=vocab, length=256, depth=4, width=128, heads=4, kv_heads=2, head_width=32, hidden=344)


def _llama(depth: int, width: int, heads: int, hidden: int) -> LlamaConfig:
    return LlamaConfig(vocab=32_000, length=2048, depth=depth, width=width, heads=heads, kv_heads=heads, head_width=128, hidden=hidden)

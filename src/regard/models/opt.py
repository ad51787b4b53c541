r"""OPT: GPT-3's architecture, published with its parameters: pre-norm blocks with relu and learned positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..layers import ACTIVATIONS, Block, Embedding, FeedForward, LayerNorm, Learned, init_gpt
from .language import Decoder, DecoderConfig, layer_heads
from .model import ModelFacts, Probability, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class OPTConfig(DecoderConfig):
    context_length: Size = 2048
    hidden: Size = 1024  # width inside the feed-forward layers
    activation: str = "relu"  # activation of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    tied: bool = True  # tied input and output embeddings
    dropout: Probability = 0.1  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_heads()
        self._one_of("activation", ACTIVATIONS)


def _published(width: int, heads: int, depth: int) -> OPTConfig:
    return OPTConfig(vocab_size=50_272, width=width, heads=heads, depth=depth, hidden=4 * width)


class OPT(Decoder):
    """Causal pre-norm blocks with relu, a final norm, and learned positions; any mechanism.

    Cost:    time O(L²·D + L·D²) per layer, in parallel over positions; a decoding step reads a KV cache.
    Use it:  to load the published checkpoints, which go from 125 million parameters on.
    Avoid it: beyond `context_length` tokens; for new models `GPT2` and `Llama` are as good or better.
    Limits:  at most `context_length` positions. The 350m checkpoint, which is post-norm with narrower embeddings, does not fit.
    Paper:   Zhang et al. 2022, "OPT: open pre-trained transformer language models", arXiv:2205.01068.
    """

    facts = ModelFacts(name="opt", year=2022, title="OPT: open pre-trained transformer language models", paper="arXiv:2205.01068")
    Config = OPTConfig
    config: OPTConfig
    sizes: ClassVar[Sizes] = {
        "opt-125m": _published(768, 12, 12),  # 125,239,296 parameters
        "opt-1.3b": _published(2048, 32, 24),  # 1,315,758,080
    }

    def _build(self) -> None:
        c = self.config

        def block(layer: int) -> Block:
            return Block(c.width, layer_heads(c, layer), FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation]), dropout=c.dropout)

        # the first two rows of the published tables belong to no position
        self.embedding = Embedding(c.vocab_size, c.width, Learned(c.context_length, c.width, offset=2), dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm = LayerNorm(c.width)
        self.output = None if c.tied else nn.Linear(c.width, c.vocab_size, bias=False)
        init_gpt(self, c.depth)

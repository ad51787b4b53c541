r"""GPT-2: a larger GPT with pre-norm blocks, which performs tasks without fine-tuning.

$$x_t = E[\mathrm{id}_t] + P_t \qquad x \leftarrow x + \mathrm{MHA}(N(x)),\; x \leftarrow x + \mathrm{FFN}(N(x)) \qquad p = \mathrm{softmax}(N(x) E^\top)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..layers import ACTIVATIONS, Block, Embedding, FeedForward, LayerNorm, Learned, init_gpt
from .language import Decoder, DecoderConfig, layer_heads
from .model import ModelFacts, Probability, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class GPT2Config(DecoderConfig):
    hidden: Size | None = None  # width inside the feed-forward layers; None: four times the width
    activation: str = "gelu_tanh"  # activation of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    tied: bool = True  # tied input and output embeddings
    dropout: Probability = 0.1  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_heads()
        self._one_of("activation", ACTIVATIONS)


def _published(width: int, heads: int, depth: int) -> GPT2Config:
    return GPT2Config(vocab_size=50_257, context_length=1024, width=width, heads=heads, depth=depth)


class GPT2(Decoder):
    """Causal pre-norm blocks with a final norm, learned positions, tied input and output embeddings.

    Cost:    time O(L²·D + L·D²) per layer, in parallel over positions; a decoding step reads a KV cache.
    Use it:  first, for language modelling: it trains reliably.
    Avoid it: beyond `context_length` tokens; `Llama` has rotary positions without an end and a smaller KV cache.
    Limits:  at most `context_length` positions. Mechanisms must be causal, and must decode step by step for `start`.
    Paper:   Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3.
    We differ: dropout acts on embeddings and on the output of sublayers, not on attention weights.
    """

    facts = ModelFacts(name="gpt2", year=2019, title="Language models are unsupervised multitask learners", paper="OpenAI 2019")
    Config = GPT2Config
    config: GPT2Config
    sizes: ClassVar[Sizes] = {
        "gpt2-small": _published(768, 12, 12),  # 124,439,808 parameters; the paper says 117 million
        "gpt2-medium": _published(1024, 16, 24),  # 354,823,168; the paper says 345 million
        "gpt2-large": _published(1280, 20, 36),  # 774,030,080; the paper says 762 million
        "gpt2-xl": _published(1600, 25, 48),  # 1,557,611,200; the paper says 1,542 million
    }

    def _build(self) -> None:
        c = self.config

        def block(layer: int) -> Block:
            feedforward = FeedForward(c.width, c.hidden or 4 * c.width, ACTIVATIONS[c.activation])
            return Block(c.width, layer_heads(c, layer), feedforward, dropout=c.dropout)

        self.embedding = Embedding(c.vocab_size, c.width, Learned(c.context_length, c.width), dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm, self.output = LayerNorm(c.width), None if c.tied else nn.Linear(c.width, c.vocab_size, bias=False)
        init_gpt(self, c.depth)

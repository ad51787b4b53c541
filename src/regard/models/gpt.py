r"""GPT: a decoder-only transformer, pretrained to predict the next token and fine-tuned for each task.

$$x_t = E[\mathrm{id}_t] + P_t \qquad x \leftarrow N(x + \mathrm{MHA}(x)),\; x \leftarrow N(x + \mathrm{FFN}(x)) \qquad p = \mathrm{softmax}(x E^\top)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..layers import Block, Embedding, FeedForward, Learned, NoNorm, gelu_tanh, init_gpt
from .language import Decoder, DecoderConfig, layer_heads
from .model import ModelFacts, Probability, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class GPTConfig(DecoderConfig):
    context_length: Size = 512
    dropout: Probability = 0.1  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_heads()


class GPT(Decoder):
    """Causal post-norm blocks, learned positions, tied input and output embeddings; any mechanism.

    Cost:    time O(L²·D + L·D²) per layer, in parallel over positions; a decoding step reads a KV cache.
    Use it:  to load the published checkpoint, and to see what moving the norms did for GPT-2.
    Avoid it: for deep models or without warm-up, where post-norm is hard to train. GPT-2 is the same with pre-norm.
    Limits:  at most `context_length` positions. Mechanisms must be causal, and must decode step by step for `start`.
    Paper:   Radford et al. 2018, "Improving language understanding by generative pre-training".
    We differ: dropout acts on embeddings and on the output of sublayers, not on attention weights.
    """

    facts = ModelFacts(name="gpt", year=2018, title="Improving language understanding by generative pre-training", paper="OpenAI 2018")
    Config = GPTConfig
    config: GPTConfig
    sizes: ClassVar[Sizes] = {
        "openai-gpt": GPTConfig(vocab_size=40_478, context_length=512, width=768, heads=12, depth=12)  # 116,534,784 parameters
    }

    def _build(self) -> None:
        c = self.config

        def block(layer: int) -> Block:
            feedforward = FeedForward(c.width, 4 * c.width, gelu_tanh)
            return Block(c.width, layer_heads(c, layer), feedforward, placement="post", dropout=c.dropout)

        self.embedding = Embedding(c.vocab_size, c.width, Learned(c.context_length, c.width), dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm, self.output = NoNorm(c.width), None
        init_gpt(self, c.depth)

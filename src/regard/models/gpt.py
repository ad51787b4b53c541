r"""GPT: a decoder alone, trained to say the next word, and then taught a task by a little more training.

$$x_t = E[\mathrm{id}_t] + P_t \qquad x \leftarrow N(x + \mathrm{MHA}(x)),\; x \leftarrow N(x + \mathrm{FFN}(x)) \qquad p = \mathrm{softmax}(x E^\top)$$
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..layers import Block, Embedding, FeedForward, Learned, NoNorm, gelu_tanh, gpt
from ._decoder import Decoder, DecoderConfig, looking_in
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class GPTConfig(DecoderConfig):
    length: int = 512
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._divided()


class GPT(Decoder):
    """Causal blocks with the norm after each sum, learned places, one table for input and output; any mechanism in them.

    Cost:    time O(L²·D + L·D²) a layer, in parallel over positions; a step of decoding looks at caches.
    Use it:  to read published weights, and to see what moving the norms did for GPT-2.
    Avoid it: deep, or without warm-up: norms after each sum want both small. GPT-2 is the same with norms before.
    Limits:  places end at `length`. Mechanisms must be causal, and go step by step for `begin`.
    Paper:   Radford et al. 2018, "Improving language understanding by generative pre-training".
    We differ: dropout acts on embeddings and on what a part adds, not on attention weights.
    """

    facts = ModelFacts(name="gpt", year=2018, title="Improving language understanding by generative pre-training", paper="OpenAI 2018")
    Config = GPTConfig
    config: GPTConfig

    def __init__(self, config: GPTConfig):
        super().__init__()
        c = self.config = config

        def block(layer: int) -> Block:
            thinking = FeedForward(c.width, 4 * c.width, gelu_tanh)
            return Block(c.width, looking_in(c, layer), thinking, placement="post", dropout=c.dropout)

        self.embedding = Embedding(c.vocab, c.width, Learned(c.length, c.width), dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm, self.output = NoNorm(c.width), None
        gpt(self, c.depth)


def openai_gpt(vocab: int = 40_478) -> GPTConfig:
    """The published one: 116,534,784 parameters."""
    return GPTConfig(vocab=vocab, length=512, width=768, heads=12, depth=12)

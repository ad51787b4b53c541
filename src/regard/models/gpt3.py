r"""GPT-3: GPT-2 a hundred times larger, with local attention in every other layer; examples in the prompt replace fine-tuning.

$$x \leftarrow x + \mathrm{MHA}_n(N(x)),\; x \leftarrow x + \mathrm{FFN}(N(x)) \qquad
  \mathrm{MHA}_n \text{ sees } j \le i \;(n \text{ even}) \text{ or } i - b < j \le i \;(n \text{ odd})$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from ..layers import Block, Embedding, FeedForward, LayerNorm, Learned, gelu_tanh, init_gpt
from .language import Decoder, DecoderConfig, layer_heads
from .model import ModelFacts, Probability, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class GPT3Config(DecoderConfig):
    context_length: Size = 2048
    head_dim: Size = 64  # heads · head_dim may differ from the width, as in the paper's "XL"
    dropout: Probability = 0.0  # dropout rate
    attention: str | tuple[str, ...] = ("softmax", "local(radius=255)")  # a band of 256 tokens in every other layer


def _published(depth: int, width: int, heads: int, head_dim: int) -> GPT3Config:
    return GPT3Config(vocab_size=50_257, depth=depth, width=width, heads=heads, head_dim=head_dim)


# Trains in minutes on a laptop: the proportions of the paper, and a band of an eighth of the context.
TINY = replace(_published(4, 128, 4, 32), vocab_size=256, context_length=256, attention=("softmax", "local(radius=31)"))


class GPT3(Decoder):
    """GPT-2 with dense and banded layers in turn, and any head size.

    Cost:    time O(L²·D) in a dense layer and O(L·b·D) in a banded one, plus O(L·D²); a banded layer caches 2·b keys at most.
    Use it:  for longer texts than GPT-2 at the same cost: half of the layers are linear in the length.
    Avoid it: for texts not much longer than the band.
    Limits:  at most `context_length` positions. Mechanisms must be causal, and must decode step by step for `start`.
    Paper:   Brown et al. 2020, "Language models are few-shot learners", arXiv:2005.14165, section 2.1 and table 2.1.
    We differ: the paper specifies neither the width of the band nor the layers that have it: here 256 tokens, in every second layer. Its
             sparse patterns are "similar to the Sparse Transformer"; a plain band is the simplest that fits. It mentions no dropout.
    """

    facts = ModelFacts(name="gpt3", year=2020, title="Language models are few-shot learners", paper="arXiv:2005.14165")
    Config = GPT3Config
    config: GPT3Config
    sizes: ClassVar[Sizes] = {
        "gpt3-tiny": TINY,
        "gpt3-small": _published(12, 768, 12, 64),  # 125 million parameters
        "gpt3-medium": _published(24, 1024, 16, 64),  # 356 million; the paper says 350
        "gpt3-large": _published(24, 1536, 16, 96),  # 760 million
        "gpt3-xl": _published(24, 2048, 24, 128),  # 1.5 billion with the table's 24 heads of 128; the paper says 1.3, which 16 would have
        "gpt3-2.7b": _published(32, 2560, 32, 80),
        "gpt3-6.7b": _published(32, 4096, 32, 128),
        "gpt3-13b": _published(40, 5140, 40, 128),  # 5,140 wide as printed
        "gpt3-175b": _published(96, 12_288, 96, 128),  # 174,604,259,328: GPT-3 itself
    }

    def _build(self) -> None:
        c = self.config

        def block(layer: int) -> Block:
            heads = layer_heads(c, layer, head_dim=c.head_dim)
            return Block(c.width, heads, FeedForward(c.width, 4 * c.width, gelu_tanh), dropout=c.dropout)

        self.embedding = Embedding(c.vocab_size, c.width, Learned(c.context_length, c.width), dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm, self.output = LayerNorm(c.width), None
        init_gpt(self, c.depth)

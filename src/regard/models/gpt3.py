r"""GPT-3: GPT-2 made a hundred times larger, every other layer looking at its neighbourhood only; examples in the prompt replace training.

$$x \leftarrow x + \mathrm{MHA}_n(N(x)),\; x \leftarrow x + \mathrm{FFN}(N(x)) \qquad
  \mathrm{MHA}_n \text{ sees } j \le i \;(n \text{ even}) \text{ or } i - b < j \le i \;(n \text{ odd})$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from ..layers import Block, Embedding, FeedForward, LayerNorm, Learned, gelu_tanh, gpt
from ._decoder import Decoder, DecoderConfig, looking_in
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class GPT3Config(DecoderConfig):
    length: int = 2048
    head_width: int = 64  # heads · head_width need not be the width: in the paper's "XL" it is not
    dropout: float = 0.0
    attention: tuple[str, ...] = ("softmax", "local(radius=255)")  # a band of 256 tokens in every other layer


class GPT3(Decoder):
    """GPT-2 with dense and banded layers in turn, and heads of any size.

    Cost:    time O(L²·D) in a dense layer and O(L·b·D) in a banded one, beside O(L·D²); a banded layer keeps 2·b keys at most.
    Use it:  for longer texts than GPT-2 at the same cost: half of the layers grow with the length only.
    Avoid it: where the length is not much beyond the band.
    Limits:  places end at `length`. Mechanisms must be causal, and go step by step for `begin`.
    Paper:   Brown et al. 2020, "Language models are few-shot learners", arXiv:2005.14165, section 2.1 and table 2.1.
    We differ: the paper does not say how wide the band is, nor which layers have it: here 256 tokens, in the second of each two. Its
             sparse patterns are "similar to the Sparse Transformer"; a plain band is the simplest that fits. No dropout is told of.
    """

    facts = ModelFacts(name="gpt3", year=2020, title="Language models are few-shot learners", paper="arXiv:2005.14165")
    Config = GPT3Config
    config: GPT3Config

    def __init__(self, config: GPT3Config):
        super().__init__()
        c = self.config = config

        def block(layer: int) -> Block:
            return Block(
                c.width, looking_in(c, layer, head_width=c.head_width), FeedForward(c.width, 4 * c.width, gelu_tanh), dropout=c.dropout
            )

        self.embedding = Embedding(c.vocab, c.width, Learned(c.length, c.width), dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm, self.output = LayerNorm(c.width), None
        gpt(self, c.depth)


def gpt3_small(vocab: int = 50_257) -> GPT3Config:
    """125 million parameters."""
    return _published(vocab, 12, 768, 12, 64)


def gpt3_medium(vocab: int = 50_257) -> GPT3Config:
    """356 million parameters; the paper says 350."""
    return _published(vocab, 24, 1024, 16, 64)


def gpt3_large(vocab: int = 50_257) -> GPT3Config:
    """760 million parameters."""
    return _published(vocab, 24, 1536, 16, 96)


def gpt3_xl(vocab: int = 50_257) -> GPT3Config:
    """1.5 billion parameters with the table's 24 heads of 128; the paper says 1.3, which 16 heads of 128 would have."""
    return _published(vocab, 24, 2048, 24, 128)


def gpt3_3b(vocab: int = 50_257) -> GPT3Config:
    """2.7 billion parameters."""
    return _published(vocab, 32, 2560, 32, 80)


def gpt3_7b(vocab: int = 50_257) -> GPT3Config:
    """6.7 billion parameters."""
    return _published(vocab, 32, 4096, 32, 128)


def gpt3_13b(vocab: int = 50_257) -> GPT3Config:
    """13 billion parameters, 5,140 wide as printed."""
    return _published(vocab, 40, 5140, 40, 128)


def gpt3_175b(vocab: int = 50_257) -> GPT3Config:
    """174,604,259,328 parameters: GPT-3 itself."""
    return _published(vocab, 96, 12_288, 96, 128)


def gpt3_tiny(vocab: int = 256) -> GPT3Config:
    """For minutes on a laptop: the proportions of the paper, and a band an eighth of the length."""
    return replace(_published(vocab, 4, 128, 4, 32), length=256, attention=("softmax", "local(radius=31)"))


def _published(vocab: int, depth: int, width: int, heads: int, head_width: int) -> GPT3Config:
    return GPT3Config(vocab=vocab, depth=depth, width=width, heads=heads, head_width=head_width)

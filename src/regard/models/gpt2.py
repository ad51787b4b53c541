r"""GPT-2: a larger GPT with norms before each part, which learns tasks from the text itself.

$$x_t = E[\mathrm{id}_t] + P_t \qquad x \leftarrow x + \mathrm{MHA}(N(x)),\; x \leftarrow x + \mathrm{FFN}(N(x)) \qquad p = \mathrm{softmax}(N(x) E^\top)$$
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..layers import Block, Embedding, FeedForward, LayerNorm, Learned, gelu_tanh, gpt
from ._decoder import Decoder, DecoderConfig, looking_in
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class GPT2Config(DecoderConfig):
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._divided()


class GPT2(Decoder):
    """Causal blocks with the norm before each part and one at the end, learned places, one table for input and output.

    Cost:    time O(L²·D + L·D²) a layer, in parallel over positions; a step of decoding looks at caches.
    Use it:  first, to model text: it trains without care.
    Avoid it: beyond `length` tokens; `Llama` has places that do not end, and fewer keys to keep.
    Limits:  places end at `length`. Mechanisms must be causal, and go step by step for `begin`.
    Paper:   Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3.
    We differ: dropout acts on embeddings and on what a part adds, not on attention weights.
    """

    facts = ModelFacts(name="gpt2", year=2019, title="Language models are unsupervised multitask learners", paper="OpenAI 2019")
    Config = GPT2Config
    config: GPT2Config

    def __init__(self, config: GPT2Config):
        super().__init__()
        c = self.config = config

        def block(layer: int) -> Block:
            return Block(c.width, looking_in(c, layer), FeedForward(c.width, 4 * c.width, gelu_tanh), dropout=c.dropout)

        self.embedding = Embedding(c.vocab, c.width, Learned(c.length, c.width), dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm, self.output = LayerNorm(c.width), None
        gpt(self, c.depth)


def gpt2_small(vocab: int = 50_257) -> GPT2Config:
    """124,439,808 parameters with the published 50,257 tokens; the paper says 117 million."""
    return _published(vocab, width=768, heads=12, depth=12)


def gpt2_medium(vocab: int = 50_257) -> GPT2Config:
    """354,823,168 parameters; the paper says 345 million."""
    return _published(vocab, width=1024, heads=16, depth=24)


def gpt2_large(vocab: int = 50_257) -> GPT2Config:
    """774,030,080 parameters; the paper says 762 million."""
    return _published(vocab, width=1280, heads=20, depth=36)


def gpt2_xl(vocab: int = 50_257) -> GPT2Config:
    """1,557,611,200 parameters; the paper says 1,542 million."""
    return _published(vocab, width=1600, heads=25, depth=48)


def _published(vocab: int, *, width: int, heads: int, depth: int) -> GPT2Config:
    return GPT2Config(vocab=vocab, length=1024, width=width, heads=heads, depth=depth)

r"""GPT-NeoX: attention and feed-forward layer read the same input, in parallel; rotary embeddings of a part of the features.

$$x \leftarrow x + \mathrm{MHA}(N_1(x)) + \mathrm{FFN}(N_2(x))$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from torch import nn

from ..errors import BadConfig
from ..layers import ACTIVATIONS, Block, Embedding, FeedForward, LayerNorm, ParallelBlock, Rotary, init_gpt
from ..layers.positions.scaling import Stretch, check_stretch
from .language import Decoder, DecoderConfig, layer_heads
from .model import ModelFacts, Positive, Probability, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class GPTNeoXConfig(DecoderConfig):
    context_length: Size = 2048  # not a limit: for mechanisms that need a length
    kv_heads: Size | None = None  # heads of keys and values, a divisor of `heads`; None: as many. StarCoder 2 has fewer
    hidden: Size = 1024  # width inside the feed-forward layers
    activation: str = "gelu"  # activation of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    parallel: bool = True  # attention and feed-forward layer in parallel; False: one after the other
    part: Positive = 0.25  # share of each head's features that rotary embeddings rotate
    base: Positive = 10_000.0  # base of the rotary angles
    stretch: Stretch = ()  # scaling of the rotary angles, for texts longer than in training; see `positions.scaling`
    eps: Positive = 1e-5  # epsilon of the layer norms
    qkv_bias: bool = True  # biases of the projections to q, k and v
    tied: bool = False  # tied input and output embeddings
    dropout: Probability = 0.0  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_heads()
        self._one_of("activation", ACTIVATIONS)
        check_stretch(self.stretch, self.rotated)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise BadConfig(f"GPTNeoXConfig: heads={self.heads}, kv_heads={self.kv_heads}; expected kv_heads to divide heads")
        if self.part > 1 or self.rotated % 2 or not self.rotated:
            raise BadConfig(
                f"GPTNeoXConfig: part={self.part} of {self.width // self.heads} features per head; expected a share that is an even number of them"
            )

    @property
    def rotated(self) -> int:
        """Features per head that are rotated."""
        return int(self.width // self.heads * self.part)


# Biderman et al. 2023, "Pythia", arXiv:2304.01373
PYTHIA = GPTNeoXConfig(vocab_size=50_304, width=512, heads=8, depth=6, hidden=2048)


class GPTNeoX(Decoder):
    """Causal pre-norm blocks whose two parts run in parallel, with rotary embeddings; any mechanism.

    Cost:    time O(L²·D + L·D²) per layer; the KV cache holds 2·D numbers per token and layer.
    Use it:  to load GPT-NeoX and Pythia, which come with checkpoints from all of training, and StarCoder 2 (not parallel).
    Avoid it: for new models; `Llama` has a smaller KV cache.
    Limits:  mechanisms must be causal, and must decode step by step for `start`.
    Paper:   Black et al. 2022, "GPT-NeoX-20B: an open-source autoregressive language model", arXiv:2204.06745. StarCoder 2:
             Lozhkov et al. 2024, arXiv:2402.19173.
    """

    facts = ModelFacts(
        name="gpt_neox", year=2022, title="GPT-NeoX-20B: an open-source autoregressive language model", paper="arXiv:2204.06745"
    )
    Config = GPTNeoXConfig
    config: GPTNeoXConfig
    sizes: ClassVar[Sizes] = {
        "pythia-70m": PYTHIA,  # 70,426,624 parameters
        "pythia-160m": replace(PYTHIA, width=768, heads=12, depth=12, hidden=3072),  # 162,322,944
        "gpt-neox-20b": replace(PYTHIA, vocab_size=50_432, width=6144, heads=64, depth=44, hidden=24_576),  # 20,554,567,680
    }

    def _build(self) -> None:
        c = self.config
        norm, kind = partial(LayerNorm, eps=c.eps), ParallelBlock if c.parallel else Block

        def block(layer: int) -> Block:
            rotary = Rotary(base=c.base, part=c.rotated, stretch=c.stretch)
            heads = layer_heads(c, layer, kv_heads=c.kv_heads, qkv_bias=c.qkv_bias, bias=c.qkv_bias, position=rotary)
            return kind(c.width, heads, FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation]), norm=norm, dropout=c.dropout)

        self.embedding = Embedding(c.vocab_size, c.width, dropout=c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm = norm(c.width)
        self.output = None if c.tied else nn.Linear(c.width, c.vocab_size, bias=False)
        init_gpt(self, c.depth)

r"""ModernBERT: a bidirectional encoder with what decoders had learned since BERT: rotary positions, gated layers, windows in most layers.

$$x_t = N(E[\mathrm{id}_t]) \qquad x \leftarrow x + \mathrm{MHA}(N(x)),\; x \leftarrow x + W_2\,(\mathrm{gelu}(W_1 N(x)) \odot W_1' N(x))$$
$$p(\mathrm{word}_t) = \mathrm{softmax}\big(E\,N(\mathrm{gelu}(W N(x_t))) + b\big)$$

The first layer has no norm before its attention: the embeddings have just been normed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import LocalAttention
from ..errors import BadConfig, NotSupported
from ..kernels import apply_linear
from ..layers import ACTIVATIONS, Block, Dropout, Embedding, FeedForward, LayerNorm, MultiHead, Packing, Rotary, init_truncated
from ..layers.activations import Gated, gelu
from ..layers.spec import Spec
from ..patterns import full, lengths
from .encoder import TextEncoder, TextEncoderConfig
from .model import Depth, ModelFacts, Positive, Probability, Size, Sizes, attention_lines, build_heads


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(TextEncoderConfig):
    max_length: Size = 8192  # not a limit: for mechanisms that need a length
    width: Size = 256  # width of the model: features per token between layers
    heads: Size = 4  # attention heads per layer
    depth: Depth = 6  # number of layers
    hidden: Size = 384  # width inside the feed-forward layers
    attention: str | tuple[str, ...] = ("softmax", "local(radius=64)", "local(radius=64)")  # mechanism of all layers, or several in turn
    base: Positive = 160_000.0  # base of the rotary angles
    local_base: Positive = 10_000.0  # base of the rotary angles in layers with a window
    activation: str = "gelu"  # gate of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    eps: Positive = 1e-5  # epsilon of the layer norms
    dropout: Probability = 0.0  # dropout rate
    mlm_head: bool = True  # masked language modelling

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention))
        super().__post_init__()
        self._one_of("activation", ACTIVATIONS)
        if self.width % self.heads or self.width // self.heads % 2:
            raise BadConfig(
                f"ModernBertConfig: width={self.width}, heads={self.heads}; expected heads of equal and even size, for rotary positions"
            )


# Warner et al. 2024, table 4
BASE = ModernBertConfig(vocab_size=50_368, width=768, heads=12, depth=22, hidden=1152)


class ModernBert(TextEncoder):
    """A pre-norm encoder with rotary positions, gated feed-forward layers and no biases, two windows for each full attention; any mechanism.

    Cost:    time O(L²·D) in every third layer and O(L·w·D) in the others, for windows of w tokens, plus O(L·D·F) in all.
    Use it:  to classify, label and compare texts, also long ones: 8,192 tokens in the published sizes.
    Avoid it: to generate text.
    Limits:  it has no segment embeddings and ignores segments, no pooler (`pooled` is the first token) and no NSP head.
    Paper:   Warner et al. 2024, "Smarter, better, faster, longer: a modern bidirectional encoder for fast, memory efficient, and long
             context finetuning and inference", arXiv:2412.13663.
    """

    facts = ModelFacts(
        name="modernbert",
        year=2024,
        title="Smarter, better, faster, longer: a modern bidirectional encoder for fast, memory efficient, and long context finetuning and inference",
        paper="arXiv:2412.13663",
    )
    Config = ModernBertConfig
    config: ModernBertConfig
    sizes: ClassVar[Sizes] = {
        "modernbert-base": BASE,  # 149,655,232 parameters
        "modernbert-large": replace(BASE, width=1024, heads=16, depth=28, hidden=2624),  # 395,881,664
    }

    def _build(self) -> None:
        c = self.config
        norm = partial(LayerNorm, eps=c.eps, bias=False)

        def heads(layer: int) -> MultiHead:
            line = c.attention[layer % len(c.attention)]
            base = c.local_base if Spec.read(line).kind is LocalAttention else c.base
            return build_heads(line, c.width, c.heads, c.max_length, bias=False, position=Rotary(base=base))

        def block(layer: int) -> Block:
            feedforward = FeedForward(c.width, c.hidden, Gated(ACTIVATIONS[c.activation]), bias=False, dropout=c.dropout)
            made = Block(c.width, heads(layer), feedforward, norm=norm, dropout=c.dropout)
            if layer == 0:
                made.around_mixer.before = None
            return made

        self.embedding, self.embedding_norm, self.dropout = Embedding(c.vocab_size, c.width), norm(c.width), Dropout(c.dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm = norm(c.width)
        self.mlm_head = nn.Sequential(nn.Linear(c.width, c.width, bias=False), norm(c.width)) if c.mlm_head else None
        self.mlm_bias = nn.Parameter(torch.zeros(c.vocab_size)) if c.mlm_head else None
        init_truncated(self)

    def features(
        self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None, packing: Packing | None = None
    ) -> Tensor:
        self.check(ids_BL, n_B, segment_BL)
        inside = Packing.of(n_B, ids_BL.shape[1]) if packing is None and n_B is not None else packing
        x_BLD = self.dropout(self.embedding_norm(self.embedding(ids_BL, packing=inside)))
        for block in self.blocks:
            x_BLD = block(x_BLD, full if n_B is None else lengths(n_B), packing=inside)
        x_BLD = self.norm(x_BLD)
        return x_BLD if inside is packing or inside is None else inside.pad(x_BLD)

    def mlm_features(self, x: Tensor) -> Tensor:
        if self.mlm_head is None:
            raise NotSupported("this ModernBert has no MLM head; build it with mlm_head=True and train that head")
        transform, norm = self.mlm_head
        return norm(gelu(apply_linear(transform, x)))  # type: ignore[arg-type]

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.embedding.token.weight, self.mlm_bias

    def pooled(self, x_BLD: Tensor) -> Tensor:
        return x_BLD[:, 0]

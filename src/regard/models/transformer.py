r"""The transformer: attention in place of recurrence, so that all positions are computed in parallel.

$$\text{encoder: } x \leftarrow N(x + \mathrm{MHA}(x, x)),\; x \leftarrow N(x + \mathrm{FFN}(x)) \qquad
  \text{decoder: the same, causal, with } y \leftarrow N(y + \mathrm{MHA}(y, x)) \text{ between}$$
$$x_t = \sqrt{D}\,E[\mathrm{id}_t] + PE_t \qquad p = \mathrm{softmax}(y E^\top)$$
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..attention import State
from ..errors import BadConfig
from ..layers import ACTIVATIONS, Block, Embedding, FeedForward, LayerNorm, MultiHead, NoNorm, Packing, States, init_xavier
from ..layers.positions import Learned, Position, Rotary, Sinusoidal
from ..patterns import causal, lengths
from .model import Depth, ModelFacts, Probability, Size, Sizes, attention_lines, build_heads
from .translator import Translator, TranslatorConfig


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TranslatorConfig):
    width: Size = 256  # width of the model: features per token between layers
    heads: Size = 4  # attention heads per layer
    depth: tuple[Depth, Depth] = (3, 3)  # layers of the encoder and of the decoder; one number is that of both
    hidden: Size = 1024  # width inside the feed-forward layers
    dropout: Probability = 0.1  # dropout rate
    tied: str = "all"  # embeddings shared by source, target and output; "output": by target and output; "none"
    placement: str = "pre"  # placement of the norms; the paper's is "post"
    position: str = "sinusoidal"  # or "sinusoidal_halves" (all sines, then all cosines, as Marian has them), "learned", "rotary", "none"
    attention: str | tuple[str, str, str] = "softmax"  # mechanism of encoder, decoder and cross-attention, or one of each
    activation: str = "relu"  # activation of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    scaled: bool = True  # token embeddings multiplied by the square root of the width
    output_bias: bool = False  # a bias per token of the vocabulary

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention, parts=3))
        super().__post_init__()
        self._one_of("tied", ("all", "output", "none"))
        self._one_of("placement", ("post", "pre", "sandwich"))
        self._one_of("position", ("sinusoidal", "sinusoidal_halves", "learned", "rotary", "none"))
        self._one_of("activation", ACTIVATIONS)
        self._check_heads()
        if self.tied == "all" and self.source_vocab_size != self.target_vocab_size:
            raise BadConfig(
                f"TransformerConfig: tied='all' with {self.source_vocab_size} source and {self.target_vocab_size} target tokens; build one joint "
                "vocabulary, or choose tied='output'"
            )

    def _check_heads(self) -> None:
        if self.width % self.heads or (self.position.startswith("sinusoidal") and self.width % 2):
            raise BadConfig(f"TransformerConfig: width={self.width}; expected a multiple of heads={self.heads}, even for sinusoids")
        if self.position == "rotary" and self.width // self.heads % 2:
            raise BadConfig(f"TransformerConfig: width / heads = {self.width // self.heads}; expected an even number for rotary positions")


# Trains in minutes on a laptop; pre-norm, which needs no long warm-up.
TINY = TransformerConfig(source_vocab_size=256, target_vocab_size=256, width=64, heads=4, depth=(2, 2), hidden=256)
BASE = TransformerConfig(
    source_vocab_size=37_000, target_vocab_size=37_000, width=512, heads=8, depth=(6, 6), hidden=2048, dropout=0.1, placement="post"
)


class Transformer(Translator):
    """An encoder and a decoder of attention and feed-forward layers; any mechanism in each of its three attentions.

    Cost:    time O((L² + M² + L·M)·D + (L + M)·D·F) per layer, in parallel over positions; a decoding step reads KV caches.
    Use it:  first, for translation and other sequence-to-sequence tasks.
    Avoid it: for very long sequences with exact attention, and for tiny data sets where order is everything.
    Limits:  learned positions end at `max_length`. The decoder's mechanism must be causal and decode step by step.
    Paper:   Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762. Pre-norm: Xiong et al. 2020,
             arXiv:2002.04745.
    We differ: the default is pre-norm with a final norm after each stack; `transformer_base` and `transformer_big` are the
             paper's, post-norm without final norms. Dropout acts as in the paper: on embeddings and on the output of
             sublayers. The paper's counts, 65 and 213 million, fit no single vocabulary: they would need 40,700 and 35,800
             tokens, and it reports about 37,000.
    """

    facts = ModelFacts(name="transformer", year=2017, title="Attention is all you need", paper="arXiv:1706.03762")
    Config = TransformerConfig
    config: TransformerConfig
    sizes: ClassVar[Sizes] = {
        "transformer-tiny": TINY,
        "transformer-base": BASE,  # 63,082,496 parameters; the paper says 65 million (see above)
        "transformer-big": replace(BASE, width=1024, heads=16, hidden=4096, dropout=0.3),  # 214,245,376; the paper says 213 million
    }
    causal_parts: ClassVar[tuple[str, ...]] = ("decoder.",)
    encoder_norm: nn.Module
    decoder_norm: nn.Module

    def _build(self) -> None:
        c = self.config

        def heads(line: str, **options: Any) -> MultiHead:
            return build_heads(line, c.width, c.heads, c.max_length, **options)

        def block(name: str, cross: MultiHead | None = None) -> Block:
            feedforward = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation])
            mixer = heads(name, position=Rotary() if c.position == "rotary" else None)
            return Block(c.width, mixer, feedforward, cross=cross, placement=c.placement, dropout=c.dropout)  # type: ignore[arg-type]

        of_encoder, of_decoder, across = tuple(c.attention)
        self.embedding = self._embedding(c.target_vocab_size)
        self.source_embedding = None if c.tied == "all" else self._embedding(c.source_vocab_size)
        self.encoder = nn.ModuleList(block(of_encoder) for _ in range(c.depth[0]))
        self.decoder = nn.ModuleList(block(of_decoder, heads(across)) for _ in range(c.depth[1]))
        final = NoNorm if c.placement == "post" else LayerNorm  # pre-norm leaves the last sum without a norm
        self.encoder_norm, self.decoder_norm = final(c.width), final(c.width)
        self.output = nn.Linear(c.width, c.target_vocab_size, bias=False) if c.tied == "none" else None
        self.output_bias = nn.Parameter(torch.zeros(c.target_vocab_size)) if c.output_bias else None
        init_xavier(self)

    def _embedding(self, vocab_size: int) -> Embedding:
        c = self.config
        positions: dict[str, Position | None] = {"none": None, "rotary": None}  # rotary ones act on queries and keys
        if c.position.startswith("sinusoidal"):
            positions[c.position] = Sinusoidal(c.width, layout="halves" if c.position.endswith("halves") else "interleaved")
        elif c.position == "learned":
            positions[c.position] = Learned(c.max_length, c.width)
        return Embedding(vocab_size, c.width, positions[c.position], scaled=c.scaled, dropout=c.dropout)

    def encode(self, source_BM: Tensor, source_n_B: Tensor, packing: Packing | None = None) -> Tensor:
        """The memory that the decoder attends to, memory_BMD; with `packing`, without padding.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            packing: positions of the real tokens of the sources; the result then has no padding.
        """
        x_BMD, allowed = (self.source_embedding or self.embedding)(source_BM, packing=packing), lengths(source_n_B)
        for block in self.encoder:
            x_BMD = block(x_BMD, allowed, packing=packing)
        return self.encoder_norm(x_BMD)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        return self._features(source_BM, source_n_B, target_BL)

    def real_features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor, target_n_B: Tensor) -> Tensor:
        packings = Packing.of(source_n_B, source_BM.shape[1]), Packing.of(target_n_B, target_BL.shape[1])
        return self._features(source_BM, source_n_B, target_BL, packings)[0]

    def _features(
        self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor, packings: tuple[Packing | None, Packing | None] = (None, None)
    ) -> Tensor:
        source_packing, packing = packings
        self.check(source_BM, source_n_B, target_BL)
        memory_BMD, allowed = self.encode(source_BM, source_n_B, source_packing), lengths(source_n_B)
        x_BLD = self.embedding(target_BL, packing=packing)
        for block in self.decoder:
            x_BLD = block(x_BLD, causal, memory_BMD, allowed, packing=packing, memory_packing=source_packing)
        return self.decoder_norm(x_BLD)

    def head(self) -> tuple[Tensor, Tensor | None]:
        return (self.embedding.token if self.output is None else self.output).weight, self.output_bias

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        memory_BMD, B = self.encode(source_BM, source_n_B), len(source_BM)
        return States(B, {f"block {i}": block.start(B, causal, memory_BMD, source_n_B) for i, block in enumerate(self._blocks())})

    def step_features(self, token_B: Tensor, state: State, want_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        assert isinstance(state, States)
        weights_BM = None
        x_BLD: Tensor = self.embedding(token_B[:, None], state.position())
        for i, block in enumerate(self._blocks()):
            part = state[f"block {i}"]
            x_BLD = block.apply_mixer(x_BLD, causal, part)
            if want_weights and i + 1 == len(self.decoder):
                weights_BM = block.cross_attention_weights(x_BLD, state=part).mean(1)[:, 0]
            x_BLD = block.apply_feedforward(block.apply_cross_attention(x_BLD, state=part))
        state.length += 1
        return self.decoder_norm(x_BLD[:, 0]), weights_BM

    def _blocks(self) -> list[Block]:
        return list(self.decoder)  # type: ignore[arg-type]  # nn.ModuleList does not know the type of its items

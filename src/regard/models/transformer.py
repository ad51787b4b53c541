r"""Attention is all: every word looks at every other at once, and nothing waits for the word before it.

$$\text{encoder: } x \leftarrow N(x + \mathrm{MHA}(x, x)),\; x \leftarrow N(x + \mathrm{FFN}(x)) \qquad
  \text{decoder: the same, causal, with } y \leftarrow N(y + \mathrm{MHA}(y, x)) \text{ between}$$
$$x_t = \sqrt{D}\,E[\mathrm{id}_t] + PE_t \qquad p = \mathrm{softmax}(y E^\top)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..attention import State
from ..errors import BadConfig
from ..layers import (
    ACTIVATIONS,
    Block,
    Embedding,
    FeedForward,
    LayerNorm,
    Learned,
    MultiHead,
    NoNorm,
    Packing,
    Position,
    Rotary,
    Sinusoidal,
    States,
    xavier,
)
from ..patterns import causal, lengths
from ._model import ModelFacts, Spec, Step, looking
from ._translator import Translator, TranslatorConfig


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TranslatorConfig):
    width: int = 256
    heads: int = 4
    depth: tuple[int, int] = (3, 3)  # of the encoder, of the decoder
    hidden: int = 1024  # of the feed-forward parts
    dropout: float = 0.1
    tied: str = "all"  # one table for source, target and output; "output": target and output share; "none"
    placement: str = "pre"  # of the norms: the paper's is "post"
    position: str = "sinusoidal"  # or "sinusoidal_halves" (all sines, then all cosines, as Marian has them), "learned", "rotary", "none"
    attention: tuple[str, str, str] = ("softmax", "softmax", "softmax")  # encoder, decoder, decoder looking at encoder
    activation: str = "relu"
    output_bias: bool = False  # a number a word, added to its logit
    length: int = 512  # longest sequence, for learned positions and mechanisms that must know

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("tied", ("all", "output", "none"))
        self._one_of("placement", ("post", "pre", "sandwich"))
        self._one_of("position", ("sinusoidal", "sinusoidal_halves", "learned", "rotary", "none"))
        self._one_of("activation", ACTIVATIONS)
        if len(self.depth) != 2 or any(type(n) is not int or n < 1 for n in self.depth):
            raise BadConfig(f"TransformerConfig: depth={self.depth!r}; expected two whole numbers, of the encoder and of the decoder")
        if isinstance(self.attention, str) or len(self.attention) != 3:
            raise BadConfig(
                f"TransformerConfig: attention={self.attention!r}; expected three names: of the encoder, the decoder, and the decoder looking "
                "at the encoder"
            )
        for line in self.attention:
            Spec.read(line)
        if self.width % self.heads or (self.position.startswith("sinusoidal") and self.width % 2):
            raise BadConfig(
                f"TransformerConfig: width={self.width}; expected a multiple of heads={self.heads}, even for sinusoidal positions"
            )
        if self.position == "rotary" and self.width // self.heads % 2:
            raise BadConfig(
                f"TransformerConfig: heads of {self.width // self.heads}, and rotary places turn pairs; expected an even width / heads"
            )
        if self.tied == "all" and self.source_vocab != self.target_vocab:
            raise BadConfig(
                f"TransformerConfig: tied='all' is one table for {self.source_vocab} source and {self.target_vocab} target tokens; make one "
                "vocabulary for both, or choose tied='output'"
            )


def transformer_base(vocab: int = 37_000) -> TransformerConfig:
    """The paper's base model. 63,082,496 parameters with 37,000 tokens; the paper says 65 million (see `Transformer`)."""
    return _paper(vocab, width=512, heads=8, hidden=2048, dropout=0.1)


def transformer_big(vocab: int = 37_000) -> TransformerConfig:
    """The paper's big model. 214,245,376 parameters with 37,000 tokens; the paper says 213 million."""
    return _paper(vocab, width=1024, heads=16, hidden=4096, dropout=0.3)


def transformer_tiny(vocab: int = 256) -> TransformerConfig:
    """For minutes on a laptop, and norms before each part, which need no long warm-up."""
    return TransformerConfig(source_vocab=vocab, target_vocab=vocab, width=64, heads=4, depth=(2, 2), hidden=256)


def _paper(vocab: int, *, width: int, heads: int, hidden: int, dropout: float) -> TransformerConfig:
    return TransformerConfig(
        source_vocab=vocab, target_vocab=vocab, width=width, heads=heads, depth=(6, 6), hidden=hidden, dropout=dropout, placement="post"
    )


class Transformer(Translator):
    """An encoder and a decoder of attention and position-wise layers only; any mechanism in each of its three attentions.

    Cost:    time O((L² + M² + L·M)·D + (L + M)·D·F) a layer, in parallel over positions; a step of decoding looks at caches.
    Use it:  first, for translation and whatever else turns a sequence into another.
    Avoid it: for very long sequences with exact attention, and where data are few and order is everything.
    Limits:  learned positions end at `length`. The decoder's mechanism must be causal and go step by step.
    Paper:   Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762. Norms first: Xiong et al. 2020,
             arXiv:2002.04745.
    We differ: the default places norms before each part and adds one after each stack; `transformer_base` and
             `transformer_big` are the paper's, norms after, none at the end. Dropout acts where the paper says: on embeddings
             and on what a part adds. The paper's counts, 65 and 213 million, fit no one vocabulary: they would
             need 40,700 and 35,800 tokens, and it names about 37,000.
    """

    facts = ModelFacts(name="transformer", year=2017, title="Attention is all you need", paper="arXiv:1706.03762")
    Config = TransformerConfig
    config: TransformerConfig
    writes: ClassVar[tuple[str, ...]] = ("decoder.",)

    def __init__(self, config: TransformerConfig):
        super().__init__()
        c = self.config = config

        def embedding(vocab: int) -> Embedding:
            places: dict[str, Position | None] = {"none": None, "rotary": None}  # those act on queries and keys
            if c.position.startswith("sinusoidal"):
                places[c.position] = Sinusoidal(c.width, layout="halves" if c.position.endswith("halves") else "interleaved")
            elif c.position == "learned":
                places[c.position] = Learned(c.length, c.width)
            return Embedding(vocab, c.width, places[c.position], scaled=True, dropout=c.dropout)

        def heads(line: str, **options: Any) -> MultiHead:
            return looking(line, c.width, c.heads, c.length, **options)

        def block(name: str, cross: MultiHead | None = None) -> Block:
            thinking = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation])
            mixer = heads(name, position=Rotary() if c.position == "rotary" else None)
            return Block(c.width, mixer, thinking, cross=cross, placement=c.placement, dropout=c.dropout)  # type: ignore[arg-type]

        of_encoder, of_decoder, across = c.attention
        self.embedding = embedding(c.target_vocab)
        self.source_embedding = None if c.tied == "all" else embedding(c.source_vocab)
        self.encoder = nn.ModuleList(block(of_encoder) for _ in range(c.depth[0]))
        self.decoder = nn.ModuleList(block(of_decoder, heads(across)) for _ in range(c.depth[1]))
        final = NoNorm if c.placement == "post" else LayerNorm  # norms before each part leave the last sum as it is
        self.encoder_norm, self.decoder_norm = final(c.width), final(c.width)
        self.output = nn.Linear(c.width, c.target_vocab, bias=False) if c.tied == "none" else None
        self.output_bias = nn.Parameter(torch.zeros(c.target_vocab)) if c.output_bias else None
        xavier(self)

    def encode(self, source_BM: Tensor, source_n_B: Tensor, packing: Packing | None = None) -> Tensor:
        """What the decoder looks at, memory_BMD; without padding if `packing` says where it is."""
        x_BMD, seen = (self.source_embedding or self.embedding)(source_BM, packing=packing), lengths(source_n_B)
        for block in self.encoder:
            x_BMD = block(x_BMD, seen, packing=packing)
        return self.encoder_norm(x_BMD)  # type: ignore[no-any-return]

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        return self._features(source_BM, source_n_B, target_BL)

    def real_features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor, target_n_B: Tensor) -> Tensor:
        packings = (Packing.of(n_B, ids.shape[1]) for n_B, ids in ((source_n_B, source_BM), (target_n_B, target_BL)))
        return self._features(source_BM, source_n_B, target_BL, *packings)[0]

    def _features(
        self,
        source_BM: Tensor,
        source_n_B: Tensor,
        target_BL: Tensor,
        source_packing: Packing | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        self.check(source_BM, source_n_B, target_BL)
        memory_BMD, seen = self.encode(source_BM, source_n_B, source_packing), lengths(source_n_B)
        x_BLD = self.embedding(target_BL, packing=packing)
        for block in self.decoder:
            x_BLD = block(x_BLD, causal, memory_BMD, seen, packing=packing, memory_packing=source_packing)
        return self.decoder_norm(x_BLD)  # type: ignore[no-any-return]

    def head(self) -> tuple[Tensor, Tensor | None]:
        return (self.embedding.token if self.output is None else self.output).weight, self.output_bias

    def begin(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        self.check(source_BM, source_n_B)
        memory_BMD, B = self.encode(source_BM, source_n_B), len(source_BM)
        return States(B, {f"block {i}": block.start(B, causal, memory_BMD, source_n_B) for i, block in enumerate(self._blocks())})

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        assert isinstance(state, States)
        weights_BM = None
        x_BLD: Tensor = self.embedding(token_B[:, None], state.position())
        for i, block in enumerate(self._blocks()):
            part = state[f"block {i}"]
            x_BLD = block.mix(x_BLD, causal, part)
            if want_weights and i + 1 == len(self.decoder):
                weights_BM = block.looks(x_BLD, state=part).mean(1)[:, 0]
            x_BLD = block.think(block.look(x_BLD, state=part))
        state.length += 1
        return Step(self.logits(self.decoder_norm(x_BLD[:, 0])), weights_BM)

    def _blocks(self) -> list[Block]:
        return list(self.decoder)  # type: ignore[arg-type]  # PyTorch's list forgets what is in it

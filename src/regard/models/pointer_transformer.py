r"""A transformer that also copies: the mean attention of its last cross-attention layer points at words of the source.

$$a_t = \frac{1}{H} \sum_h \mathrm{softmax}(q_{th} \cdot k_h / \sqrt K) \qquad p_{gen} = σ(w^\top y_t + b) \qquad
  P(w) = p_{gen} P_{vocab}(w) + (1 - p_{gen}) \sum_{i:\, x_i = w} a_{ti}$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import State
from ..attention.helpers import float32_or_wider
from ..layers import States
from ..patterns import causal, lengths
from .copying import CopyConfig, CopyModel, CopyOutputs, never
from .model import Depth, ModelFacts, Probability, Size
from .transformer import Transformer, TransformerConfig
from .translator import Decoding


@dataclass(frozen=True, kw_only=True)
class PointerTransformerConfig(CopyConfig):
    width: Size = 256  # width of the model: features per token between layers
    heads: Size = 4  # attention heads per layer
    depth: tuple[Depth, Depth] = (3, 3)  # layers of the encoder and of the decoder; one number is that of both
    hidden: Size = 1024  # width inside the feed-forward layers
    dropout: Probability = 0.1  # dropout rate
    attention: str | tuple[str, str, str] = "softmax"  # mechanism of encoder, decoder and cross-attention, or one of each

    def __post_init__(self) -> None:
        super().__post_init__()
        self.transformer()  # checks the rest

    def transformer(self) -> TransformerConfig:
        """The config of the transformer inside; source, target and output share one embedding."""
        sizes = {name: getattr(self, name) for name in ("width", "heads", "depth", "hidden", "dropout", "attention", "max_length")}
        return TransformerConfig(source_vocab_size=self.vocab_size, target_vocab_size=self.vocab_size, **sizes)


class PointerTransformer(CopyModel):
    """An encoder–decoder transformer whose last cross-attention points at the words to copy.

    Cost:    time O((L² + M² + L·M)·D + (L + M)·D·F) per layer, in parallel over positions; a decoding step reads KV caches.
    Use it:  for summaries of more than a few thousand examples, where the recurrent pointer_generator is too slow.
    Avoid it: on small data: attention from scratch learns to point later than the recurrent one.
    Limits:  the coverage loss acts on the attention that is copied from; the scores do not see the coverage.
    Paper:   the mixture of See et al. 2017, arXiv:1704.04368, on Vaswani et al. 2017, arXiv:1706.03762; as in Gehrmann et al. 2018,
             "Bottom-up abstractive summarization", arXiv:1808.10792, section 4, which copies from one head.
    We differ: all heads of the last layer are averaged.
    """

    facts = ModelFacts(name="pointer_transformer", year=2018, title="Bottom-up abstractive summarization", paper="arXiv:1808.10792")
    Config = PointerTransformerConfig
    config: PointerTransformerConfig
    causal_parts: ClassVar[tuple[str, ...]] = ("transformer.decoder.",)

    def _build(self) -> None:
        self.transformer = Transformer(self.config.transformer())
        self.gate = nn.Linear(self.config.width, 1) if self.config.pointer else None

    def outputs(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> CopyOutputs:
        self.check(source_BM, source_n_B, target_BL)
        inner, allowed = self.transformer, lengths(source_n_B)
        memory_BMD = inner.encode(self.embeddable(source_BM), source_n_B)
        x_BLD = inner.embedding(self.embeddable(target_BL))
        *blocks, last = inner._blocks()
        for block in blocks:
            x_BLD = block(x_BLD, causal, memory_BMD, allowed)
        x_BLD = last.apply_mixer(x_BLD, causal)
        weights_BHLM = last.cross_attention_weights(x_BLD, memory_BMD, allowed)
        x_BLD = last.apply_feedforward(last.apply_cross_attention(x_BLD, memory_BMD, allowed))
        return self._outputs(inner.decoder_norm(x_BLD), weights_BHLM.mean(1))

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> States:
        inner = self.transformer.start(self.embeddable(source_BM), source_n_B)
        return States(len(source_BM), {"transformer": inner, "source": Decoding({}, self.source_state(source_BM))})

    def step_outputs(self, token_B: Tensor, state: State) -> CopyOutputs:
        assert isinstance(state, States)
        x_BD, weights_BM = self.transformer.step_features(self.embeddable(token_B), state["transformer"], want_weights=True)
        assert weights_BM is not None
        self.source_part(state).move()
        state.length += 1
        return self._outputs(x_BD[:, None], weights_BM[:, None])

    def source_part(self, state: State) -> Decoding:
        assert isinstance(state, States)
        part = state["source"]
        assert isinstance(part, Decoding)
        return part

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.transformer.head()

    def _outputs(self, x_BLD: Tensor, weights_BLM: Tensor) -> CopyOutputs:
        weights_BLM = float32_or_wider(weights_BLM)
        log_weights_BLM = weights_BLM.clamp(min=torch.finfo(weights_BLM.dtype).tiny).log()
        log_weights_BLM = log_weights_BLM.masked_fill(weights_BLM == 0, never(weights_BLM)).log_softmax(
            -1
        )  # in bfloat16 they do not quite sum to one
        return CopyOutputs(x_BLD, x_BLD[..., 0] if self.gate is None else self.gate(x_BLD)[..., 0], log_weights_BLM)

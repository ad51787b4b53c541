r"""BERT: a bidirectional encoder, pretrained by masked language modelling and next sentence prediction.

$$x_t = N(E[\mathrm{id}_t] + P_t + S_{\mathrm{segment}}) \qquad x \leftarrow N(x + \mathrm{MHA}(x, x)),\; x \leftarrow N(x + \mathrm{FFN}(x))$$
$$p(\mathrm{word}_t) = \mathrm{softmax}\big(E\,N(\mathrm{gelu}(W x_t)) + b\big) \qquad y = \tanh(W_p x_0)$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..layers import MultiHead
from ..layers.spec import Spec
from .encoder import Encoder, HeadsConfig
from .model import ModelFacts, Sizes, build_heads


@dataclass(frozen=True, kw_only=True)
class BertConfig(HeadsConfig):
    attention: str = "softmax(dropout=0.1)"  # mechanism of all layers, with settings or a pattern if needed: softmax under window(64)

    def __post_init__(self) -> None:
        super().__post_init__()
        Spec.read(self.attention)


def _sized(depth: int, width: int) -> BertConfig:
    """The paper's proportions: heads of 64, feed-forward layers four times as wide. Turc et al. have 2 to 12 layers, 128 to 768 wide."""
    return BertConfig(vocab_size=30_522, width=width, heads=width // 64, depth=depth, hidden=4 * width)


class Bert(Encoder):
    """A post-norm encoder with learned positions, segment embeddings, and MLM and NSP heads; any mechanism.

    Cost:    time O(L²·D + L·D·F) per layer, in parallel over positions.
    Use it:  to classify, label and compare texts: pretrained once on much text, fine-tuned on little.
    Avoid it: to generate text, and beyond `max_length` tokens, where it has no positions.
    Limits:  at most `max_length` tokens. `n_B` is the number of real tokens per row; padding is left out of all computation.
    Paper:   Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", arXiv:1810.04805. The smaller sizes: Turc
             et al. 2019, "Well-read students learn better", arXiv:1908.08962.
    """

    facts = ModelFacts(name="bert", year=2018, title="BERT: pre-training of deep bidirectional transformers", paper="arXiv:1810.04805")
    Config = BertConfig
    config: BertConfig
    sizes: ClassVar[Sizes] = {
        "bert-tiny": _sized(2, 128),  # 4.4 million parameters, all heads included
        "bert-mini": _sized(4, 256),  # 11.3 million
        "bert-small": _sized(4, 512),  # 29.1 million
        "bert-medium": _sized(8, 512),  # 41.7 million
        "bert-base": _sized(12, 768),  # 110,106,428
        "bert-large": _sized(24, 1024),  # 336,226,108; the paper says 340 million
    }

    def _mixer(self, layer: int) -> MultiHead:
        c = self.config
        return build_heads(c.attention, c.width, c.heads, c.max_length)

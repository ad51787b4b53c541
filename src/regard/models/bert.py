r"""BERT: read a text from both sides at once, and learn by guessing hidden words and whether two texts belong together.

$$x_t = N(E[\mathrm{id}_t] + P_t + S_{\mathrm{kind}}) \qquad x \leftarrow N(x + \mathrm{MHA}(x, x)),\; x \leftarrow N(x + \mathrm{FFN}(x))$$
$$p(\mathrm{word}_t) = \mathrm{softmax}\big(E\,N(\mathrm{gelu}(W x_t)) + b\big) \qquad y = \tanh(W_p x_0)$$
"""

from __future__ import annotations

from dataclasses import dataclass

from ..layers import MultiHead
from ._encoder import Encoder, HeadsConfig
from ._model import ModelFacts, Spec, looking


@dataclass(frozen=True, kw_only=True)
class BertConfig(HeadsConfig):
    attention: str = "softmax(dropout=0.1)"  # a mechanism by name, with settings and a pattern if wanted: see `Spec`

    def __post_init__(self) -> None:
        super().__post_init__()
        Spec.read(self.attention)


class Bert(Encoder):
    """An encoder with norms after each sum, learned places, and heads for hidden words and for pairs of texts; any mechanism in it.

    Cost:    time O(L²·D + L·D·F) a layer, in parallel over positions.
    Use it:  to classify, to label, to compare texts: pre-trained once on much text, fine-tuned on little.
    Avoid it: to write: it reads from both sides. Beyond `length` tokens it has no places.
    Limits:  at most `length` tokens. `n_B` says how many of a row are real; the others are left out of everything.
    Paper:   Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", arXiv:1810.04805. The smaller sizes: Turc
             et al. 2019, "Well-read students learn better", arXiv:1908.08962.
    """

    facts = ModelFacts(name="bert", year=2018, title="BERT: pre-training of deep bidirectional transformers", paper="arXiv:1810.04805")
    Config = BertConfig
    config: BertConfig

    def _mixer(self, layer: int) -> MultiHead:
        c = self.config
        return looking(c.attention, c.width, c.heads, c.length)


def bert_base(vocab: int = 30_522) -> BertConfig:
    """110,106,428 parameters with the paper's 30,522 tokens, all heads counted."""
    return bert_sized(12, 768, vocab)


def bert_large(vocab: int = 30_522) -> BertConfig:
    """336,226,108 parameters; the paper says 340 million."""
    return bert_sized(24, 1024, vocab)


def bert_tiny(vocab: int = 30_522) -> BertConfig:
    """4.4 million parameters."""
    return bert_sized(2, 128, vocab)


def bert_mini(vocab: int = 30_522) -> BertConfig:
    """11.3 million parameters."""
    return bert_sized(4, 256, vocab)


def bert_small(vocab: int = 30_522) -> BertConfig:
    """29.1 million parameters."""
    return bert_sized(4, 512, vocab)


def bert_medium(vocab: int = 30_522) -> BertConfig:
    """41.7 million parameters."""
    return bert_sized(8, 512, vocab)


def bert_sized(depth: int, width: int, vocab: int = 30_522) -> BertConfig:
    """The paper's proportions: heads of 64, feed-forward parts four times as wide. Turc et al. have 2 to 12 layers, 128 to 768 wide."""
    return BertConfig(vocab=vocab, width=width, heads=width // 64, depth=depth, hidden=4 * width)

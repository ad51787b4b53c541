r"""Longformer: BERT for long documents. Tokens attend within a window; a few global tokens, with their own projections, attend to all."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadConfig
from ..layers import LongformerHeads
from .encoder import Encoder, HeadsConfig
from .model import Count, ModelFacts, Positive, Probability, Size


@dataclass(frozen=True, kw_only=True)
class LongformerConfig(HeadsConfig):
    max_length: Size = 4096
    window: tuple[int, ...] = (512,)  # width of the window, both sides together: one number, or one per layer
    at: tuple[int, ...] = (0,)  # positions of the global tokens
    attention_dropout: Probability = 0.1  # dropout rate of attention weights
    segments: Count = 1  # number of segment embeddings
    padding: Count | None = 0  # the published tables have 1, as RoBERTa's, from which they were initialised
    eps: Positive = 1e-5
    nsp_head: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.window) not in (1, self.depth) or any(type(w) is not int or w < 2 or w % 2 for w in self.window):
            raise BadConfig(
                f"LongformerConfig: window={self.window!r}; expected an even number from 2 on, or {self.depth} of them, one per layer"
            )


class Longformer(Encoder):
    """BERT with a sliding window and global tokens in place of full attention.

    Cost:    time O(L·(w + |G|)·D + L·D·F) per layer, memory O(L·D): linear in the length.
    Use it:  to classify, label or search documents of thousands of words.
    Avoid it: below a few hundred tokens, where BERT is as fast.
    Limits:  at most `max_length` tokens. Global tokens are the same in all rows: the first one, which a classifier reads, or those of `at`.
    Paper:   Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150.
    """

    facts = ModelFacts(name="longformer_encoder", year=2020, title="Longformer: the long-document transformer", paper="arXiv:2004.05150")
    Config = LongformerConfig
    config: LongformerConfig

    def _mixer(self, layer: int) -> LongformerHeads:
        c = self.config
        window = c.window[layer % len(c.window)]
        return LongformerHeads(c.width, c.heads, window // 2, c.at, dropout=c.attention_dropout)

r"""Longformer: BERT for long documents. Every token sees its neighbours; a few see, and are seen by, all, with projections of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import BadConfig
from ..layers import LongformerHeads
from ._encoder import Encoder, HeadsConfig
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class LongformerConfig(HeadsConfig):
    length: int = 4096
    window: tuple[int, ...] = (512,)  # tokens seen, both sides together: one number, or one a layer
    at: tuple[int, ...] = (0,)  # global tokens, counted from the start
    attention_dropout: float = 0.1
    kinds: int = 1
    eps: float = 1e-5
    sentences: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.window) not in (1, self.depth) or any(type(w) is not int or w < 2 or w % 2 for w in self.window):
            raise BadConfig(
                f"LongformerConfig: window={self.window!r}; expected one even number of at least 2, or one for each of {self.depth} layers"
            )


class Longformer(Encoder):
    """BERT's blocks with a sliding window and global tokens in place of full attention.

    Cost:    time O(L·(w + |G|)·D + L·D·F) a layer, memory O(L·D): linear in the length.
    Use it:  to classify, label or search documents of thousands of words.
    Avoid it: below some hundred tokens, where BERT is as fast.
    Limits:  at most `length` tokens. Global tokens are the same in all rows: the first one, which a classifier reads, or as `at` says.
    Paper:   Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150.
    """

    facts = ModelFacts(name="longformer_encoder", year=2020, title="Longformer: the long-document transformer", paper="arXiv:2004.05150")
    Config = LongformerConfig
    config: LongformerConfig
    offset: ClassVar[int] = 2  # as in RoBERTa, whose tables it took over: rows 0 and 1 are of padding

    def _mixer(self, layer: int) -> LongformerHeads:
        c = self.config
        window = c.window[layer % len(c.window)]
        return LongformerHeads(c.width, c.heads, window // 2, c.at, dropout=c.attention_dropout)

"""The likelihood of a text in the units that papers use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..data import TokenizedText


@dataclass(frozen=True)
class TextScore:
    """Likelihood of a text."""

    loss: float  # nats per token
    perplexity: float  # exp(loss)
    bits_per_byte: float  # comparable between tokenizers
    accuracy: float  # share of tokens that were the most likely ones
    tokens: int  # predicted
    bytes: int  # bytes of the text they make
    unknown: float  # share of tokens that are not in the vocabulary: above 0, bits_per_byte leaves out what they were

    @classmethod
    def of(cls, sums: Mapping[str, float], tokens: TokenizedText) -> TextScore:
        """Score from summed losses over these tokens."""
        count = max(int(sums["count"]), 1)
        loss, bits = sums["loss"] / count, sums["loss"] / math.log(2) / max(tokens.bytes, 1)
        accuracy, unknown = sums["accuracy"] / count, tokens.unknown / len(tokens)
        return cls(loss, math.exp(min(loss, 700.0)), bits, accuracy, count, tokens.bytes, unknown)

    def metrics(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("loss", "perplexity", "bits_per_byte", "accuracy")}

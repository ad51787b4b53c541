"""What decoding needs from a model, and what it returns: one protocol for RNNs and transformers, one record per hypothesis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from ..data import BOS, EOS, PAD
from ..errors import NotSupported


class Rows(Protocol):
    """A decoding state of any model: its rows can be repeated, reordered and dropped."""

    def reorder(self, rows: Tensor) -> Self: ...


class Stepped(Protocol):
    """The result of one step: logits_BN over the vocabulary, and attention weights_BM over the source if the model has any and they were requested."""

    @property
    def logits_BN(self) -> Tensor: ...

    @property
    def weights_BM(self) -> Tensor | None: ...


S = TypeVar("S", bound=Rows)
S_in = TypeVar("S_in", bound=Rows, contravariant=True)


class DecoderModel(Protocol[S_in]):
    """Anything that decodes one token per row and step. The state is updated in place."""

    def step(self, token_B: Tensor, state: S_in, want_weights: bool = False) -> Stepped: ...


class EncoderDecoder(Protocol[S]):
    """A model that encodes a source first: an encoder–decoder."""

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> S: ...

    def step(self, token_B: Tensor, state: S, want_weights: bool = False) -> Stepped: ...


@dataclass(frozen=True, kw_only=True)
class DecoderTokens:
    """The special tokens of a decoder: the first token of a target, the end token, and tokens that are never generated."""

    first: int = BOS
    end: int = EOS
    banned: tuple[int, ...] = (PAD, BOS)  # the log-probabilities of the other tokens are not renormalised

    def __post_init__(self) -> None:
        if self.end in self.banned:
            raise NotSupported(f"the end token {self.end} is one of banned={self.banned}; then no hypothesis could end")


@dataclass(frozen=True, kw_only=True)
class RelativeLength:
    """A maximum length relative to the source: |Y| ≤ factor · |X| + offset. Vaswani et al. 2017 use 1 · |X| + 50."""

    factor: float = 1.0
    offset: int = 50

    def __post_init__(self) -> None:
        if self.factor < 0 or self.offset < 0 or self.factor + self.offset <= 0:
            raise NotSupported(f"{self}: expected a factor and an offset of at least 0 that allow for one token")


def max_lengths(max_tokens: int | RelativeLength | None, source_n_B: Tensor) -> list[int]:
    """The maximum number of tokens of each row, the end token included."""
    if isinstance(max_tokens, int):
        return [max_tokens] * len(source_n_B)
    rule = max_tokens or RelativeLength()
    return [max(1, int(rule.factor * n) + rule.offset) for n in source_n_B.tolist()]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """One decoded sequence. `ids` exclude the first and the end token; `log_probs` and `weights_LM` have a row for the end token too."""

    ids: list[int]
    score: float  # what hypotheses are ranked by: log_prob with length and coverage penalties
    log_prob: float  # log P of all tokens including the end token, under the model itself
    log_probs: list[float]
    finished: bool = True  # False: it was cut off at the maximum length
    weights_LM: Tensor | None = None  # attention weights over the source, without padding


def require_weights(step: Stepped, purpose: str) -> Tensor:
    """The attention weights of a step, or an error that says what they are needed for."""
    if step.weights_BM is None:
        raise NotSupported(f"{purpose} needs attention weights, and this model's steps return none; use a model with cross-attention")
    return step.weights_BM


def device_of(model: Any) -> torch.device:
    """The device of the model's parameters; CPU for a model without any."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def full_precision(logits_BN: Tensor) -> Tensor:
    """Logits in float32 or better: sums over a vocabulary lose too much in half precision."""
    return logits_BN if logits_BN.dtype == torch.float64 else logits_BN.float()


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """The model in evaluation mode (no dropout); modules that were training are set back to training afterwards."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True

"""What decoding asks of a model, and what it gives back: one protocol for RNNs and transformers, one record per answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from ..data import BOS, EOS, PAD
from ..errors import NotSupported


class Rows(Protocol):
    """A state of any model: all decoding needs of it is that rows can be repeated, moved and dropped."""

    def reorder(self, rows: Tensor) -> Self: ...


class Stepped(Protocol):
    """What one step gives: logits_BN over the vocabulary, and weights_BM over the source where the model has them and was asked."""

    @property
    def logits_BN(self) -> Tensor: ...

    @property
    def weights_BM(self) -> Tensor | None: ...


S = TypeVar("S", bound=Rows)
S_in = TypeVar("S_in", bound=Rows, contravariant=True)


class Model(Protocol[S_in]):
    """Whatever goes on by one token a row. The state is moved on in place."""

    def step(self, token_B: Tensor, state: S_in, want_weights: bool = False) -> Stepped: ...


class Encoder(Protocol[S]):
    """A model that reads a source first: an encoder–decoder."""

    def begin(self, source_BM: Tensor, source_n_B: Tensor) -> S: ...

    def step(self, token_B: Tensor, state: S, want_weights: bool = False) -> Stepped: ...


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The ids that mean something to a decoder: what a target begins with, what ends it, what it never says."""

    first: int = BOS
    end: int = EOS
    never: tuple[int, ...] = (PAD, BOS)  # padding and the beginning; the log-probabilities of the others stay the model's own

    def __post_init__(self) -> None:
        if self.end in self.never:
            raise NotSupported(f"the end token {self.end} is also one of never={self.never}; then no answer could end")


@dataclass(frozen=True, kw_only=True)
class Relative:
    """A limit that follows the source: |Y| ≤ factor · |X| + plus. Vaswani et al. 2017 take 1 · |X| + 50."""

    factor: float = 1.0
    plus: int = 50

    def __post_init__(self) -> None:
        if self.factor < 0 or self.plus < 0 or self.factor + self.plus <= 0:
            raise NotSupported(f"{self}: expected a factor and a number to add that leave room for a token")


def limits(most: int | Relative | None, source_n_B: Tensor) -> list[int]:
    """The largest number of tokens of each row, the end token counted."""
    if isinstance(most, int):
        return [most] * len(source_n_B)
    rule = most or Relative()
    return [max(1, int(rule.factor * n) + rule.plus) for n in source_n_B.tolist()]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """One answer. `ids` are without the first and the end token; `log_probs` and `weights_LM` have a row for the end token too."""

    ids: list[int]
    score: float  # what answers are ranked by: log_prob, made fair to lengths, and coverage
    log_prob: float  # log P of all tokens, the end token counted, under the model itself
    log_probs: list[float]
    finished: bool = True  # it ended by itself or at a stop string; False: it was cut at the limit
    weights_LM: Tensor | None = None  # where each token looked in the source; its padding is cut off


def asked_weights(step: Stepped, why: str) -> Tensor:
    """The weights of a step, or an error that says who wanted them."""
    if step.weights_BM is None:
        raise NotSupported(
            f"{why} needs to know where each step looked, and this model's steps give no weights; use a model with attention"
        )
    return step.weights_BM


def device_of(model: Any) -> torch.device:
    """Where the model's parameters are; CPU for a model without any."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def full_precision(logits_BN: Tensor) -> Tensor:
    """Logits in float32 or better: sums over a vocabulary lose too much in half precision."""
    return logits_BN if logits_BN.dtype == torch.float64 else logits_BN.float()

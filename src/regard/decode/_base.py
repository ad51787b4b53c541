"""Interface of decoding to models, and its results: one protocol for RNNs and transformers, one record per hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..data import BOS, EOS, PAD, Tokenizer
from ..errors import NotSupported
from ..models import Step
from .options import RelativeLength


class DecoderModel(Protocol):
    """Anything that decodes one token per row and step. The state, whose rows can be reordered, is updated in place."""

    def step(self, token_B: Tensor, state: Any, want_weights: bool = False) -> Step: ...


class EncoderDecoder(DecoderModel, Protocol):
    """A model that encodes a source first: an encoder–decoder."""

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class DecoderTokens:
    """The special tokens of a decoder: the first token of a target, the end token, and tokens that are never generated."""

    first: int = BOS  # first token of a target
    end: int = EOS  # end token
    banned: tuple[int, ...] = (PAD, BOS)  # the log-probabilities of the other tokens are not renormalised

    def __post_init__(self) -> None:
        if self.end in self.banned:
            raise NotSupported(f"the end token {self.end} is one of banned={self.banned}; then no hypothesis could end")

    @classmethod
    def of(cls, tokenizer: Tokenizer, *more_banned: int) -> DecoderTokens:
        """Special tokens of what a decoder writes about a source."""
        return cls(first=tokenizer.target_start_id, end=tokenizer.target_end_id, banned=(*tokenizer.banned_ids, *more_banned))


def max_lengths(max_tokens: int | RelativeLength | None, source_n_B: Tensor) -> list[int]:
    """The maximum number of tokens of each row, the end token included."""
    if isinstance(max_tokens, int):
        return [max_tokens] * len(source_n_B)
    rule = max_tokens or RelativeLength()
    return [max(1, int(rule.factor * n) + rule.offset) for n in source_n_B.tolist()]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """One decoded sequence. `ids` exclude the first and the end token; `log_probs` and `weights_LM` have a row for the end token too."""

    ids: list[int]  # token ids without the first and the end token
    score: float  # rank of hypotheses: log_prob with length and coverage penalties
    log_prob: float  # log P of all tokens including the end token, under the model itself
    log_probs: list[float]  # log-probability of each token, and of the end token
    finished: bool = True  # False: it was cut off at the maximum length
    weights_LM: Tensor | None = None  # attention weights over the source, without padding


def require_weights(step: Step, purpose: str) -> Tensor:
    """The attention weights of a step, or an error that says what they are needed for."""
    if step.weights_BM is None:
        raise NotSupported(f"{purpose} needs attention weights, and this model's steps return none; use a model with cross-attention")
    return step.weights_BM

"""Models of a single text: language models, which predict the next token, and encoders, which read in both directions.

    model.features(ids)                   features of all tokens; those at t depend on tokens 0 … t and predict token t + 1
    state = model.start(batch)            a decoding state that has read nothing yet
    model.features(ids, state=state)      continue from there: with a whole prompt, or a single token
    model.step(token, state)              the same for one token per row: logits of the next token

All of them agree: `forward` gives at position t what the t-th `step` gives, and a prompt may be split anywhere. With `document_BL`, the
document number of every token, documents packed into one row do not attend to each other, and positions start at 0 in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import State
from ..errors import DtypeError, ShapeError
from ..kernels import fast_linear
from ..layers import Packing
from ._config import ModelConfig, Size
from ._model import Model, Step


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(ModelConfig):
    vocab_size: Size
    context_length: Size = 1024  # longest text, for positional embeddings and mechanisms that need it; recurrent and rotary models read on


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(ModelConfig):
    vocab_size: Size
    max_length: Size = 512  # longest text, for positional embeddings


class LanguageModel(Model):
    """Predicts the next token. A model implements `features`, `head` and `start`; the rest is here."""

    config: LanguageModelConfig
    causal_parts: ClassVar[tuple[str, ...]] = ("",)  # all of it
    length_setting: ClassVar[str] = "context_length"

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        """x_BLD: position t depends on tokens 0 … t and on what the state has read before; the state advances."""
        raise NotImplementedError

    def start(self, batch: int) -> State:
        """A decoding state for `batch` texts. Its rows can be reordered, reset and joined (`State.join`) for batches that change."""
        raise NotImplementedError

    def forward(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        """logits_BLN"""
        return self.logits(self.features(ids_BL, document_BL, state))

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token per row; the state advances. There is no source to have weights over; `regard.capture` shows the weights of all layers."""
        return Step(self.logits(self.features(token_B[:, None], state=state)[:, 0]), None)

    def check(self, ids_BL: Tensor, document_BL: Tensor | None = None) -> None:
        """Raise an error for inputs whose shapes or types do not fit together."""
        check_ids(type(self).__name__, ids_BL, document_BL)


class TextEncoder(Model):
    """Reads a text in both directions: features of each token, logits of masked tokens, and one vector per text.

    A model implements `features`, `mlm_features`, `head` and `pooled`; the rest is here.
    """

    config: TextEncoderConfig

    def features(
        self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None, packing: Packing | None = None
    ) -> Tensor:
        """x_BLD. The first n_B tokens of each row are real, the rest is padding; `segment_BL` holds segment ids. With `packing`
        (`Packing.of(n_B, L)`) only the real tokens are returned, x_1TD."""
        raise NotImplementedError

    def mlm_features(self, x: Tensor) -> Tensor:
        """Features made ready for the output projection: `fast_linear(mlm_features(x), *head())` are the logits of hidden tokens."""
        return x

    def pooled(self, x_BLD: Tensor) -> Tensor:
        """One vector per text, y_BD, from its features: what a classifier reads."""
        raise NotImplementedError

    def forward(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Tensor:
        """logits_BLN of the token at every position."""
        return self.logits(self.features(ids_BL, n_B, segment_BL))

    def logits(self, x: Tensor) -> Tensor:
        return fast_linear(self.mlm_features(x), *self.head())

    def sentence_embeddings(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> Tensor:
        """One unit vector per text, y_BD: the normalised mean of its token features, to be compared by dot products."""
        x_BLD = self.features(ids_BL, n_B, segment_BL)
        if n_B is None:
            return F.normalize(x_BLD.mean(1), dim=-1)
        real_BL1 = (torch.arange(x_BLD.shape[1], device=x_BLD.device) < n_B[:, None])[..., None]
        return F.normalize((x_BLD * real_BL1).sum(1) / n_B[:, None].clamp(min=1), dim=-1)

    def check(self, ids_BL: Tensor, n_B: Tensor | None = None, segment_BL: Tensor | None = None) -> None:
        """Raise an error for inputs whose shapes or types do not fit together."""
        me = type(self).__name__
        check_ids(me, ids_BL, segment_BL)
        if n_B is not None and n_B.shape != ids_BL.shape[:1]:
            raise ShapeError(f"{me} takes one length per row, got lengths {tuple(n_B.shape)} for ids {tuple(ids_BL.shape)}")


def cap_logits(logits: Tensor, cap: float | None) -> Tensor:
    """Logits bounded to ± cap, smoothly."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def check_ids(me: str, ids_BL: Tensor, beside_BL: Tensor | None) -> None:
    """Token ids are integers of shape (batch, length), and what comes with them has the same shape."""
    if ids_BL.dim() != 2 or (beside_BL is not None and beside_BL.shape != ids_BL.shape):
        beside = "" if beside_BL is None else f" with segments or documents {tuple(beside_BL.shape)}"
        raise ShapeError(f"{me} takes token ids (batch, length), got {tuple(ids_BL.shape)}{beside}; ids[None] makes a batch of one")
    if ids_BL.dtype.is_floating_point or ids_BL.dtype == torch.bool:
        raise DtypeError(f"{me} takes token ids as integers, not {ids_BL.dtype}; convert with .long()")

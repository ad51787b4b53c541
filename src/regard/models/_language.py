"""What every model of one text offers: language models read from the left and go on, encoders read all at once.

    model.features(ids)                   row t has read ids 0 … t and speaks about id t + 1
    state = model.begin(batch)            a reader that has read nothing yet
    model.features(ids, state=state)      read on from there: a prompt in one go, or a token
    model.step(token, state)              the same for one token a row: logits of the next

All ways must agree: `forward` gives at row t what the t-th `step` gives, and a prompt may be cut anywhere. With `document_BL` every token
carries the number of its document, and each document is read as if it were alone, its positions counted from its own beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import State
from ..errors import DtypeError, ShapeError
from ..kernels import linear
from ..layers import Packing
from ._model import Model, ModelConfig, Step


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(ModelConfig):
    vocab: int
    length: int = 1024  # longest text, where positions end; models without such an end read on


class LanguageModel(Model):
    """Says what comes next. A model gives `features`, `head` and `begin`; the rest is here."""

    config: LanguageModelConfig
    writes: ClassVar[tuple[str, ...]] = ("",)  # all of it

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        """x_BLD: row t has read ids 0 … t, and what the state has read before; the state moves on."""
        raise NotImplementedError

    def head(self) -> tuple[Tensor, Tensor | None]:
        """weight_ND and bias_N of the output projection, so that a loss may be computed without ever holding all logits."""
        raise NotImplementedError

    def begin(self, batch: int) -> State:
        """A reader of `batch` texts that has read nothing. It reorders, resets and joins rows (`State.join`) for batches that change."""
        raise NotImplementedError

    def forward(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        """logits_BLN"""
        return self.logits(self.features(ids_BL, document_BL, state))

    def logits(self, x: Tensor) -> Tensor:
        return linear(x, *self.head())

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token a row; the state goes on. There is no source, so no weights over one; `regard.capture` sees all layers."""
        return Step(self.logits(self.features(token_B[:, None], state=state)[:, 0]), None)

    def check(self, ids_BL: Tensor, document_BL: Tensor | None = None) -> None:
        """Refuse by name what does not fit together."""
        check_ids(type(self).__name__, ids_BL, document_BL)


class TextEncoder(Model):
    """Reads a text from both sides: features of each token, guesses of hidden ones, and one vector for all. A model gives `features`,
    `spoken`, `head` and `pooled`; the rest is here."""

    config: LanguageModelConfig

    def features(self, ids_BL: Tensor, n_B: Tensor | None = None, kind_BL: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        """x_BLD. The first n_B tokens of each row are real; `kind_BL` says which of two texts a token belongs to. With `packing`
        (`Packing.of(n_B, L)`) only the real ones come back, x_1TD."""
        raise NotImplementedError

    def spoken(self, x: Tensor) -> Tensor:
        """Features made ready for the output projection: `linear(spoken(x), *head())` are the logits of hidden tokens."""
        return x

    def head(self) -> tuple[Tensor, Tensor | None]:
        """weight_ND and bias_N of the output projection."""
        raise NotImplementedError

    def pooled(self, x_BLD: Tensor) -> Tensor:
        """One vector a text, y_BD, of its features: what a classifier reads."""
        raise NotImplementedError

    def forward(self, ids_BL: Tensor, n_B: Tensor | None = None, kind_BL: Tensor | None = None) -> Tensor:
        """logits_BLN of every token's own place."""
        return self.logits(self.features(ids_BL, n_B, kind_BL))

    def logits(self, x: Tensor) -> Tensor:
        return linear(self.spoken(x), *self.head())

    def embedded(self, ids_BL: Tensor, n_B: Tensor | None = None, kind_BL: Tensor | None = None) -> Tensor:
        """One vector of length 1 a text, y_BD: the mean of its tokens' features. What sentence encoders compare, by dot products."""
        x_BLD = self.features(ids_BL, n_B, kind_BL)
        if n_B is None:
            return F.normalize(x_BLD.mean(1), dim=-1)
        real_BL1 = (torch.arange(x_BLD.shape[1], device=x_BLD.device) < n_B[:, None])[..., None]
        return F.normalize((x_BLD * real_BL1).sum(1) / n_B[:, None].clamp(min=1), dim=-1)

    def check(self, ids_BL: Tensor, n_B: Tensor | None = None, kind_BL: Tensor | None = None) -> None:
        """Refuse by name what does not fit together."""
        me = type(self).__name__
        check_ids(me, ids_BL, kind_BL)
        if n_B is not None and n_B.shape != ids_BL.shape[:1]:
            raise ShapeError(f"{me} takes one length a row, got lengths {tuple(n_B.shape)} for ids {tuple(ids_BL.shape)}")


def check_ids(me: str, ids_BL: Tensor, beside_BL: Tensor | None) -> None:
    """Whole numbers (batch, length), and as many beside them."""
    if ids_BL.dim() != 2 or (beside_BL is not None and beside_BL.shape != ids_BL.shape):
        beside = "" if beside_BL is None else f" and {tuple(beside_BL.shape)} beside them"
        raise ShapeError(f"{me} takes token numbers (batch, length), got {tuple(ids_BL.shape)}{beside}; ids[None] makes a batch of one")
    if ids_BL.dtype.is_floating_point or ids_BL.dtype == torch.bool:
        raise DtypeError(f"{me} takes whole numbers, not {ids_BL.dtype}; tokens are ids, convert with .long()")

"""What every encoder–decoder offers: features of a whole target for training, and one token a step for decoding.

    model.features(source, n, target)     teacher forcing: row t has read target 0 … t and speaks about target t + 1
    state = model.begin(source, n)        encode once;  state.reorder(rows) follows beams
    model.step(token, state)              logits of the next token, and where this step looked

Both ways must agree: `forward` gives at row t what the t-th `step` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..attention import State
from ..errors import DtypeError, ShapeError
from ..kernels import linear
from ..layers import Packing
from ..layers._states import below
from ._model import Model, ModelConfig, Step


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(ModelConfig):
    source_vocab: int
    target_vocab: int


class Translator(Model):
    """Reads a source, writes a target. A model gives `features`, `head`, `begin` and `step`; the rest is here."""

    config: TranslatorConfig

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        """x_BLD under teacher forcing. `target_BL` begins with BOS; row t is about target t + 1."""
        raise NotImplementedError

    def real_features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor, target_n_B: Tensor) -> Tensor:
        """The features of the first `target_n_B` tokens of each row only, one behind the other, x_TD: what a loss needs."""
        x_BLD = self.features(source_BM, source_n_B, target_BL)
        return Packing.of(target_n_B, x_BLD.shape[1]).pack(x_BLD)[0]

    def head(self) -> tuple[Tensor, Tensor | None]:
        """weight_ND and bias_N of the output projection, so that a loss may be computed without ever holding all logits."""
        raise NotImplementedError

    def begin(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        """The source, encoded once, and a decoder that has read nothing yet."""
        raise NotImplementedError

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token a row; the state goes on."""
        raise NotImplementedError

    def forward(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        """logits_BLN under teacher forcing."""
        return self.logits(self.features(source_BM, source_n_B, target_BL))

    def logits(self, x: Tensor) -> Tensor:
        return linear(x, *self.head())

    def check(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor | None = None) -> None:
        """Refuse by name what does not fit together."""
        me, given = type(self).__name__, f"source {tuple(source_BM.shape)}, lengths {tuple(source_n_B.shape)}"
        if source_BM.dim() != 2 or source_n_B.shape != source_BM.shape[:1]:
            raise ShapeError(f"{me} takes a source (batch, length) and one length a row, got {given}")
        if target_BL is not None and (target_BL.dim() != 2 or len(target_BL) != len(source_BM)):
            raise ShapeError(f"{me} takes a target (batch, length) of as many rows as the source, got {tuple(target_BL.shape)}, {given}")
        if any(x.dtype.is_floating_point or x.dtype == torch.bool for x in (source_BM, source_n_B)):
            raise DtypeError(f"{me} takes whole numbers, not {source_BM.dtype} and {source_n_B.dtype}; convert with .long()")
        # looking at the numbers makes a GPU wait
        if (
            source_n_B.device.type == "cpu"
            and len(source_n_B)
            and not 1 <= int(source_n_B.min()) <= int(source_n_B.max()) <= source_BM.shape[1]
        ):
            raise ShapeError(
                f"{me}: lengths must be 1 to {source_BM.shape[1]}, got {int(source_n_B.min())} to {int(source_n_B.max())}; "
                "an empty source still has an end-of-sentence token"
            )


class Decoding(State):
    """Where a decoder stands. `now` changes with every step, `fixed` is what the encoder made; all tensors are batch first.

    `looking` is the state of an attention that counts its steps. `reset` lets rows begin the same source anew.
    """

    def __init__(self, now: Mapping[str, Tensor], fixed: Mapping[str, Tensor], looking: State | None = None):
        super().__init__(len(next(iter(now.values()))))
        self.now, self.fixed, self.looking = dict(now), dict(fixed), looking
        self.first = dict(now)

    def move(self, steps: int = 1, /, **now: Tensor) -> None:
        """A step was made, or several, to `now`."""
        self.now.update(now)
        self.length += steps

    def reorder(self, rows: Tensor) -> Self:
        for tensors in (self.now, self.fixed, self.first):
            tensors.update({name: x.index_select(0, rows) for name, x in tensors.items()})
        if self.looking is not None:
            self.looking.reorder(rows)
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        """A shorter source gets zeros behind it: models know its length."""
        self._joins(other)
        for mine, theirs in ((self.now, other.now), (self.fixed, other.fixed), (self.first, other.first)):
            mine.update({name: torch.cat([x, theirs[name]]) if x.dim() == 1 else below(x, theirs[name]) for name, x in mine.items()})
        if self.looking is not None and other.looking is not None:
            self.looking.join(other.looking)
        return super().join(other)

    def reset(self, rows: Tensor) -> Self:
        for name, x in self.now.items():
            begun = torch.zeros(self.batch, dtype=torch.bool, device=x.device)
            begun[rows] = True
            self.now[name] = torch.where(begun.view(-1, *[1] * (x.dim() - 1)), self.first[name], x)
        if self.looking is not None:
            self.looking.reset(rows)
        return super().reset(rows)

    def detach(self) -> Self:
        for tensors in (self.now, self.fixed, self.first):
            tensors.update({name: x.detach() for name, x in tensors.items()})
        if self.looking is not None:
            self.looking.detach()
        return self

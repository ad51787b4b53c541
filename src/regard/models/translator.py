"""Encoder–decoder models: features of a whole target for training, and one token per step for decoding.

    model.features(source, n, target)     teacher forcing: position t depends on target tokens 0 … t and predicts token t + 1
    state = model.start(source, n)        encode once;  state.reorder(rows) follows beams
    model.step(token, state)              logits of the next token, and the attention weights of this step

Both agree: `forward` gives at position t what the t-th `step` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..attention import State
from ..errors import DtypeError, ShapeError
from ..layers import Packing
from ..layers.multihead import below
from .model import Model, ModelConfig, Size, Step


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(ModelConfig):
    source_vocab_size: Size  # number of source tokens
    target_vocab_size: Size  # number of target tokens
    max_length: Size = 512  # longest sequence, for learned positions and mechanisms that need it; recurrent models read on


class Translator(Model):
    """Reads a source and generates a target. A model implements `features`, `head`, `start` and `step_features`; the rest is here.

    Shape: source_BM, source_n_B, target_BL → logits_BLN.
    """

    config: TranslatorConfig

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        """x_BLD under teacher forcing. `target_BL` starts with BOS; position t predicts target token t + 1.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            target_BL: token ids of the targets, which start with BOS.
        """
        raise NotImplementedError

    def real_features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor, target_n_B: Tensor) -> Tensor:
        """The features of the first `target_n_B` tokens of each row, concatenated, x_TD: what a loss needs.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            target_BL: token ids of the targets, which start with BOS.
            target_n_B: number of real tokens of each target.
        """
        x_BLD = self.features(source_BM, source_n_B, target_BL)
        return Packing.of(target_n_B, x_BLD.shape[1]).pack(x_BLD)[0]

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        """Encode the source, and return a decoding state that has read no target token yet."""
        raise NotImplementedError

    def step_features(self, token_B: Tensor, state: State, want_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """x_BD after one token per row, and attention weights_BM over the source if requested; the state advances.

        Args:
            token_B: last token of each row.
            state: decoding state, which advances.
            want_weights: return attention weights over the source, too.
        """
        raise NotImplementedError

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token per row: the logits of the next; the state advances.

        Args:
            token_B: last token of each row.
            state: decoding state, which advances.
            want_weights: return attention weights over the source, too.
        """
        x_BD, weights_BM = self.step_features(token_B, state, want_weights)
        return Step(self.logits(x_BD), weights_BM)

    def forward(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        """logits_BLN under teacher forcing.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            target_BL: token ids of the targets, which start with BOS.
        """
        return self.logits(self.features(source_BM, source_n_B, target_BL))

    def check(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor | None = None) -> None:
        """Raise an error for inputs whose shapes or types do not fit together.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            target_BL: token ids of the targets; None: not checked.
        """
        check_pairs(type(self).__name__, source_BM, source_n_B, target_BL)


def check_pairs(me: str, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor | None = None) -> None:
    """Raise an error for a source, its lengths and a target whose shapes or types do not fit together; `me` is who takes them."""
    given = f"source {tuple(source_BM.shape)}, lengths {tuple(source_n_B.shape)}"
    if source_BM.dim() != 2 or source_n_B.shape != source_BM.shape[:1]:
        raise ShapeError(f"{me} takes a source (batch, length) and one length per row, got {given}")
    if target_BL is not None and (target_BL.dim() != 2 or len(target_BL) != len(source_BM)):
        raise ShapeError(f"{me} takes a target (batch, length) with as many rows as the source, got {tuple(target_BL.shape)}, {given}")
    if any(x.dtype.is_floating_point or x.dtype == torch.bool for x in (source_BM, source_n_B)):
        raise DtypeError(f"{me} takes ids and lengths as integers, not {source_BM.dtype} and {source_n_B.dtype}; convert with .long()")
    if source_n_B.device.type == "cpu" and len(source_n_B):  # reading the values would make a GPU wait
        shortest, longest, M = int(source_n_B.min()), int(source_n_B.max()), source_BM.shape[1]
        if not 1 <= shortest <= longest <= M:
            raise ShapeError(f"{me}: lengths are {shortest} to {longest}; expected 1 to {M}: an empty source still has an end token")


class Decoding(State):
    """The state of a recurrent decoder. `now` changes with every step, `fixed` comes from the encoder; all tensors are batch first.

    `reset` restarts rows on the same source.

    Args:
        now: tensors that change with every step, by name.
        fixed: tensors of the encoder, by name.
        attention_state: state of a mechanism that counts its steps; None: none.

    Shape: all tensors are batch first.
    """

    def __init__(self, now: Mapping[str, Tensor], fixed: Mapping[str, Tensor], attention_state: State | None = None):
        super().__init__(len(next(iter((*now.values(), *fixed.values())))))
        self.now, self.fixed, self.attention_state = dict(now), dict(fixed), attention_state
        self.first = dict(now)

    def move(self, steps: int = 1, /, **now: Tensor) -> None:
        """Advance by one step, or several, to `now`."""
        self.now.update(now)
        self.length += steps

    def reorder(self, rows: Tensor) -> Self:
        for tensors in (self.now, self.fixed, self.first):
            tensors.update({name: x.index_select(0, rows) for name, x in tensors.items()})
        if self.attention_state is not None:
            self.attention_state.reorder(rows)
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        """Shorter sources are padded with zeros: models know their lengths."""
        self._check_join(other)
        for mine, theirs in ((self.now, other.now), (self.fixed, other.fixed), (self.first, other.first)):
            mine.update({name: torch.cat([x, theirs[name]]) if x.dim() == 1 else below(x, theirs[name]) for name, x in mine.items()})
        if self.attention_state is not None and other.attention_state is not None:
            self.attention_state.join(other.attention_state)
        return super().join(other)

    def reset(self, rows: Tensor) -> Self:
        for name, x in self.now.items():
            begun = torch.zeros(self.batch, dtype=torch.bool, device=x.device)
            begun[rows] = True
            self.now[name] = torch.where(begun.view(-1, *[1] * (x.dim() - 1)), self.first[name], x)
        if self.attention_state is not None:
            self.attention_state.reset(rows)
        return super().reset(rows)

    def detach(self) -> Self:
        for tensors in (self.now, self.fixed, self.first):
            tensors.update({name: x.detach() for name, x in tensors.items()})
        if self.attention_state is not None:
            self.attention_state.detach()
        return self

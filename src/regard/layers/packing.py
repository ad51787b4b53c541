r"""Packed batches: padding passes through attention, which needs rows of one length, and through nothing else.

A batch of sentences is padded to the longest; linear layers, norms and dropout then also process the padding. In a packed batch the
real tokens of all sentences are concatenated, x_1TD; only q, k and v are padded for attention, and its output is packed again.
Results are those of the padded batch. A fifth of padding costs a fifth of everything but attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels import first_derivatives_only


@dataclass(frozen=True, eq=False)
class Packing:
    """The positions of the real tokens in a padded batch (B, length): the first n_B of each row, in order."""

    batch: int  # number of rows B
    length: int  # positions per row, padding included
    index_T: Tensor  # b · length + t

    @classmethod
    def of(cls, n_B: Tensor, length: int) -> Packing:
        real_BL = torch.arange(length, device=n_B.device) < n_B[:, None]
        return cls(len(n_B), length, real_BL.flatten().nonzero()[:, 0])

    def pack(self, x_BLD: Tensor) -> Tensor:
        """x_1TD: without padding."""
        return _move(x_BLD, self.packed, self.padded)

    def pad(self, x_1TD: Tensor) -> Tensor:
        """x_BLD: with zeros as padding."""
        return _move(x_1TD, self.padded, self.packed)

    def packed(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.flatten(0, 1).index_select(0, self.index_T).unsqueeze(0)

    def padded(self, x_1TD: Tensor) -> Tensor:
        x_BLD = x_1TD.new_zeros(self.batch * self.length, *x_1TD.shape[2:])
        return x_BLD.index_copy_(0, self.index_T, x_1TD[0]).unflatten(0, (self.batch, self.length))


@dataclass(frozen=True, eq=False)
class Documents:
    """The layout of packed documents: `position_BL` starts at 0 in each document, `rows` unpacks them to one row per document."""

    position_BL: Tensor
    rows: Packing  # packed: tokens of all rows of the batch in order, x_1TD; padded: (documents, longest)

    @classmethod
    def of(cls, document_BL: Tensor) -> Documents:
        """Consecutive tokens with equal numbers form a document."""
        B, L = document_BL.shape
        begins_BL = torch.ones_like(document_BL, dtype=torch.bool)
        begins_BL[:, 1:] = document_BL[:, 1:] != document_BL[:, :-1]
        at_L = torch.arange(L, device=document_BL.device)
        position_BL = at_L - torch.where(begins_BL, at_L, 0).cummax(1).values
        longest = int(position_BL.max()) + 1 if B * L else 0
        number_T = begins_BL.flatten().cumsum(0) - 1
        return cls(position_BL, Packing(int(begins_BL.sum()), longest, number_T * longest + position_BL.flatten()))

    @property
    def padding(self) -> float:
        """The size of the batch with one document per row, padded, relative to the packed one."""
        return self.rows.batch * self.rows.length / max(1, self.position_BL.numel())


def _move(x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    if torch.compiler.is_compiling():  # torch.compile cannot trace the function below with sizes that vary
        return there(x)
    return _Move.apply(x, there, back)  # type: ignore[no-untyped-call]


class _Move(torch.autograd.Function):
    """Packing and padding are each other's gradients; autograd would sum over equal indices instead."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(d_out), None, None

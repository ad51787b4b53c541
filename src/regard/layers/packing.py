r"""Real tokens only: padding goes through attention, which needs rows of one length, and through nothing else.

A batch of sentences is padded to the longest; linear maps, norms and dropout then work on padding as on words. Packed, the
real tokens of all sentences stand one behind the other, x_1TD; only q, k and v are put into padded rows and their average
taken out again. Results are those of the padded batch. A fifth of padding costs a fifth of everything but attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the real tokens of a padded batch (B, length) are: the first n_B of each row, in order."""

    batch: int
    length: int
    index_T: Tensor  # b · length + t

    @classmethod
    def of(cls, n_B: Tensor, length: int) -> Packing:
        real_BL = torch.arange(length, device=n_B.device) < n_B[:, None]
        return cls(len(n_B), length, real_BL.flatten().nonzero()[:, 0])

    def pack(self, x_BLD: Tensor) -> Tensor:
        """x_1TD: padding left out."""
        return _Pack.apply(x_BLD, self)  # type: ignore[no-any-return,no-untyped-call]

    def pad(self, x_1TD: Tensor) -> Tensor:
        """x_BLD: zeros where there is no token."""
        return _Pad.apply(x_1TD, self)  # type: ignore[no-any-return,no-untyped-call]

    def packed(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.flatten(0, 1).index_select(0, self.index_T).unsqueeze(0)

    def padded(self, x_1TD: Tensor) -> Tensor:
        x_BLD = x_1TD.new_zeros(self.batch * self.length, *x_1TD.shape[2:])
        return x_BLD.index_copy_(0, self.index_T, x_1TD[0]).unflatten(0, (self.batch, self.length))  # type: ignore[no-any-return]


class _Pack(torch.autograd.Function):
    """Each is the other's gradient: no sum over equal indices, as PyTorch would have to make."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return packing.packed(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        return ctx.packing.padded(d_out), None


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return packing.padded(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        return ctx.packing.packed(d_out), None

r"""An LSTM and a GRU that read the rows of a padded batch in both directions at once and skip its padding.

$$\text{lstm: } (i, f, o, g) = W x_t + b + U h_{t-1} \qquad c_t = σ(f)\,c_{t-1} + σ(i)\tanh(g) \qquad h_t = σ(o)\tanh(c_t)$$
$$\text{gru: } (r, z, n) = W x_t + b,\; (r', z', n') = U h_{t-1} + b' \qquad h_t = n_t + σ(z + z')\,(h_{t-1} - n_t), \quad n_t = \tanh(n + σ(r + r')\,n')$$

Rows are sorted by length, so that step t concerns the first `sizes[t]` of them; tokens are concatenated step by step, x_2TD, direction 1
with each row reversed. The input's part of all gates is one matmul before the steps. A step is one batched matmul for both directions and
some operations in place. The backward pass computes everything that does not depend on later steps at once, and the gradients of W and U as
one matmul each after the steps; PyTorch's own adds to them at each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .numerics import first_derivatives_only, no_autocast


@dataclass(frozen=True, eq=False)
class Steps:
    """The layout of the tokens of a padded batch (B, L), step by step, for both directions."""

    sizes: tuple[int, ...]  # rows at each step: the longest first
    starts: tuple[int, ...]  # of each step among the T tokens
    index_2T: Tensor  # b · L + t of each token; in direction 1 each row is read from its end
    before_S: Tensor  # of the tokens after the first step: where their row was a step before

    @classmethod
    def of(cls, n_B: Tensor, length: int) -> Steps:
        n_B = n_B.clamp(max=length)
        n_R, row_R = n_B.sort(descending=True, stable=True)
        step_T, rank_T = (n_R > torch.arange(length, device=n_B.device)[:, None]).nonzero(as_tuple=True)
        there_T = row_R[rank_T] * length
        sizes = tuple(torch.bincount(step_T, minlength=1).tolist()) if len(step_T) else ()
        starts = tuple(accumulate(sizes, initial=0))
        later_S = slice(sizes[0] if sizes else 0, None)
        before_S = torch.tensor(starts, device=n_B.device)[step_T[later_S] - 1] + rank_T[later_S]
        return cls(sizes, starts, torch.stack([there_T + step_T, there_T + n_R[rank_T] - 1 - step_T]), before_S)

    def gather(self, x_BLD: Tensor) -> Tensor:
        """x_2TD."""
        return x_BLD.flatten(0, 1).index_select(0, self.index_2T.flatten()).unflatten(0, (2, -1))

    def states(self, h_BLD: Tensor) -> Tensor:
        """h_2TW of states [h→ ; h←]."""
        return h_BLD.reshape(-1, h_BLD.shape[-1] // 2).index_select(0, self._halves()).unflatten(0, (2, -1))

    def pad(self, h_2TW: Tensor, batch: int, length: int) -> Tensor:
        """States [h→ ; h←] in the layout of the batch; zeros where there is no token."""
        h_BLD = h_2TW.new_zeros(batch * length * 2, h_2TW.shape[-1])
        return h_BLD.index_copy_(0, self._halves(), h_2TW.flatten(0, 1)).view(batch, length, -1)

    def _halves(self) -> Tensor:
        direction_21 = torch.arange(2, device=self.index_2T.device)[:, None]
        return (2 * self.index_2T + direction_21).flatten()


@no_autocast
def bidirectional_lstm(x_BLD: Tensor, n_B: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor) -> Tensor:
    """States [h→ ; h←] of the first n_B tokens of each row, h_BLD; gates are (i, f, o, g) for each direction."""
    x_BLD, steps = x_BLD.to(weight_2DG.dtype), Steps.of(n_B, x_BLD.shape[1])
    return _LSTM.apply(x_BLD, weight_2DG, bias_2G, recurrent_2WG, steps)  # type: ignore[no-untyped-call]


@no_autocast
def bidirectional_gru(
    x_BLD: Tensor, n_B: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor, recurrent_bias_2G: Tensor
) -> Tensor:
    """States [h→ ; h←] of the first n_B tokens of each row, h_BLD; gates are (r, z, n) for each direction."""
    x_BLD, steps = x_BLD.to(weight_2DG.dtype), Steps.of(n_B, x_BLD.shape[1])
    return _GRU.apply(x_BLD, weight_2DG, bias_2G, recurrent_2WG, recurrent_bias_2G, steps)  # type: ignore[no-untyped-call]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BLD: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor, steps: Steps) -> Tensor:
        W = recurrent_2WG.shape[1]
        x_2TD = steps.gather(x_BLD)
        gates_2TG = torch.baddbmm(bias_2G.unsqueeze(1), x_2TD, weight_2DG)
        cell_2TW, squashed_2TW, h_2TW = gates_2TG.new_empty(3, 2, x_2TD.shape[1], W)
        for step, (size, start) in enumerate(zip(steps.sizes, steps.starts, strict=False)):
            now, before = slice(start, start + size), slice(start - steps.sizes[step - 1], start - steps.sizes[step - 1] + size)
            gates_2RG, cell_2RW = gates_2TG[:, now], cell_2TW[:, now]
            if step:
                gates_2RG.baddbmm_(h_2TW[:, before], recurrent_2WG)
            gates_2RG[..., : 3 * W].sigmoid_()
            gates_2RG[..., 3 * W :].tanh_()
            i, f, o, g = gates_2RG.split(W, -1)
            torch.mul(i, g, out=cell_2RW)
            if step:
                cell_2RW.addcmul_(f, cell_2TW[:, before])
            torch.tanh(cell_2RW, out=squashed_2TW[:, now])
            torch.mul(o, squashed_2TW[:, now], out=h_2TW[:, now])
        ctx.steps, ctx.shape = steps, x_BLD.shape
        ctx.save_for_backward(x_2TD, weight_2DG, recurrent_2WG, gates_2TG, cell_2TW, squashed_2TW, h_2TW)
        return steps.pad(h_2TW, *x_BLD.shape[:2])

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_h_BLD: Tensor) -> tuple[Tensor | None, ...]:
        x_2TD, weight_2DG, recurrent_2WG, gates_2TG, cell_2TW, squashed_2TW, h_2TW = ctx.saved_tensors
        steps, W = ctx.steps, recurrent_2WG.shape[1]
        first = steps.sizes[0] if steps.sizes else 0
        i, f, o, g = gates_2TG.split(W, -1)
        # what a change of each gate's input does to the cell, and to h for o: nothing of it depends on later steps
        d_gates_2TG = torch.addcmul(gates_2TG, gates_2TG, gates_2TG, value=-1)  # σ' = σ − σ²
        d_i, d_f, d_o, d_g = d_gates_2TG.split(W, -1)
        d_i.mul_(g)
        d_f[:, :first] = 0
        d_f[:, first:].mul_(cell_2TW.index_select(1, steps.before_S))
        d_o.mul_(squashed_2TW)
        torch.addcmul(i, i * g, g, value=-1, out=d_g)  # i tanh' = i − i g²
        through_cell_2TW = torch.addcmul(o, o * squashed_2TW, squashed_2TW, value=-1)
        d_h_2TW, d_cell_2RW = steps.states(d_h_BLD), gates_2TG.new_zeros(2, first, W)
        for step in reversed(range(len(steps.sizes))):
            size, start = steps.sizes[step], steps.starts[step]
            now, d_cell, d_h = slice(start, start + size), d_cell_2RW[:, :size], d_h_2TW[:, start : start + size]
            d_cell.addcmul_(d_h, through_cell_2TW[:, now])
            d_gates_2RG = d_gates_2TG[:, now]
            d_gates_2RG.unflatten(-1, (4, W))[..., :2, :].mul_(d_cell.unsqueeze(2))
            d_gates_2RG[..., 2 * W : 3 * W].mul_(d_h)
            d_gates_2RG[..., 3 * W :].mul_(d_cell)
            if step:
                d_cell.mul_(f[:, now])
                begin = steps.starts[step - 1]
                d_h_2TW[:, begin : begin + size].baddbmm_(d_gates_2RG, recurrent_2WG.mT)
        d_recurrent_2WG = h_2TW.index_select(1, steps.before_S).mT @ d_gates_2TG[:, first:]
        return *_input_gradients(ctx, x_2TD, weight_2DG, d_gates_2TG), d_recurrent_2WG, None


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_BLD: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor, recurrent_bias_2G: Tensor, steps: Steps
    ) -> Tensor:
        W = recurrent_2WG.shape[1]
        x_2TD = steps.gather(x_BLD)
        gates_2TG = torch.baddbmm(bias_2G.unsqueeze(1), x_2TD, weight_2DG)
        gates_2TG[..., : 2 * W] += recurrent_bias_2G[:, None, : 2 * W]
        h_2TW, inner_2TW = gates_2TG.new_empty(2, 2, x_2TD.shape[1], W)  # inner: n' = U h + b'
        inner_2TW.copy_(recurrent_bias_2G[:, None, 2 * W :].expand_as(inner_2TW))
        for step, (size, start) in enumerate(zip(steps.sizes, steps.starts, strict=False)):
            now, before = slice(start, start + size), slice(start - steps.sizes[step - 1], start - steps.sizes[step - 1] + size)
            gates_2RG, inner_2RW, h_2RW = gates_2TG[:, now], inner_2TW[:, now], h_2TW[:, now]
            if step:
                gates_2RG[..., : 2 * W].baddbmm_(h_2TW[:, before], recurrent_2WG[..., : 2 * W])
                inner_2RW.baddbmm_(h_2TW[:, before], recurrent_2WG[..., 2 * W :])
            gates_2RG[..., : 2 * W].sigmoid_()
            r, z, n = gates_2RG.split(W, -1)
            n.addcmul_(r, inner_2RW).tanh_()
            if step:
                torch.lerp(n, h_2TW[:, before], z, out=h_2RW)
            else:
                torch.addcmul(n, n, z, value=-1, out=h_2RW)
        ctx.steps, ctx.shape = steps, x_BLD.shape
        ctx.save_for_backward(x_2TD, weight_2DG, recurrent_2WG, gates_2TG, inner_2TW, h_2TW)
        return steps.pad(h_2TW, *x_BLD.shape[:2])

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_h_BLD: Tensor) -> tuple[Tensor | None, ...]:
        x_2TD, weight_2DG, recurrent_2WG, gates_2TG, inner_2TW, h_2TW = ctx.saved_tensors
        steps, W = ctx.steps, recurrent_2WG.shape[1]
        first = steps.sizes[0] if steps.sizes else 0
        r, z, n = gates_2TG.split(W, -1)
        before_2SW = h_2TW.index_select(1, steps.before_S)
        # d h / d (each gate's input), without what comes from later steps
        d_gates_2TG = torch.empty_like(gates_2TG)
        d_r, d_z, d_n = d_gates_2TG.split(W, -1)
        torch.addcmul(z, z, z, value=-1, out=d_z)
        d_z[:, :first].mul_(n[:, :first].neg())
        d_z[:, first:].mul_(before_2SW - n[:, first:])
        torch.mul(1 - z, 1 - n * n, out=d_n)
        torch.mul(r - r * r, inner_2TW, out=d_r)
        d_r.mul_(d_n)
        d_inner_2TW = d_n * r
        d_h_2TW = steps.states(d_h_BLD)
        for step in reversed(range(len(steps.sizes))):
            size, start = steps.sizes[step], steps.starts[step]
            now, d_h = slice(start, start + size), d_h_2TW[:, start : start + size]
            d_gates_2TG[:, now].unflatten(-1, (3, W)).mul_(d_h.unsqueeze(2))
            d_inner_2TW[:, now].mul_(d_h)
            if step:
                begin = steps.starts[step - 1]
                d_before = d_h_2TW[:, begin : begin + size]
                d_before.addcmul_(d_h, z[:, now])
                d_before.baddbmm_(d_gates_2TG[:, now, : 2 * W], recurrent_2WG[..., : 2 * W].mT)
                d_before.baddbmm_(d_inner_2TW[:, now], recurrent_2WG[..., 2 * W :].mT)
        from_h_2TG = torch.cat([d_gates_2TG[..., : 2 * W], d_inner_2TW], -1)
        d_recurrent_2WG = before_2SW.mT @ from_h_2TG[:, first:]
        return *_input_gradients(ctx, x_2TD, weight_2DG, d_gates_2TG), d_recurrent_2WG, from_h_2TG.sum(1), None


def _input_gradients(ctx: Any, x_2TD: Tensor, weight_2DG: Tensor, d_gates_2TG: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """Of x_BLD, if it needs one, of the weight and of the bias."""
    d_x_BLD = None
    if ctx.needs_input_grad[0]:
        B, L, D = ctx.shape
        d_x_2TD = d_gates_2TG @ weight_2DG.mT
        d_x_BLD = d_x_2TD.new_zeros(B * L, D).index_add_(0, ctx.steps.index_2T.flatten(), d_x_2TD.flatten(0, 1)).view(B, L, D)
    return d_x_BLD, x_2TD.mT @ d_gates_2TG, d_gates_2TG.sum(1)

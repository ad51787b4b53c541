r"""An LSTM and a GRU that read rows of unequal length in both directions at once and skip all padding.

$$\text{lstm: } (i, f, o, g) = W x_t + b + U h_{t-1} \qquad c_t = σ(f)\,c_{t-1} + σ(i)\tanh(g) \qquad h_t = σ(o)\tanh(c_t)$$
$$\text{gru: } (r, z, n) = W x_t + b,\; (r', z', n') = U h_{t-1} + b' \qquad h_t = n_t + σ(z + z')\,(h_{t-1} - n_t), \quad n_t = \tanh(n + σ(r + r')\,n')$$

Rows are sorted by length, so that step t concerns the first `sizes[t]` of them; tokens are concatenated step by step, x_2TD, direction 1
with each row reversed. The input's part of all gates is one matmul before the steps. A step is one batched matmul for both directions and
some operations in place. The backward pass computes everything that does not depend on later steps at once, and the gradients of W and U as
one matmul each after the steps; PyTorch's own adds to them at each step. tanh(x) = 2 σ(2x) − 1, since PyTorch's tanh takes seven times as long
as its sigmoid (50 and 7 µs for 16,384 numbers, AVX-512). A step's product is a tensor of its own that is then added: `baddbmm_` into a part of a
tensor multiplies one direction after the other (2 × 64 rows, 128 units, two threads: 241 µs, as one batch 129).

Rows come padded, x_BLD, or packed, x_TD: the tokens of the first row, of the second, and so on. States have the layout of the input.
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
    """The layout of rows of tokens, step by step, for both directions."""

    sizes: tuple[int, ...]  # rows at each step: the longest first
    index_2T: Tensor  # index of each token among those of the input; in direction 1 each row is read from its end
    before_S: Tensor  # index, for the tokens after the first step, of their row a step before

    @classmethod
    def of(cls, x: Tensor, n_B: Tensor) -> Steps:
        """Make the steps of padded rows, x_BLD, or packed ones, x_TD."""
        packed = x.dim() == 2
        length = int(n_B.max()) if packed and len(n_B) else x.shape[-2]
        n_B = n_B.clamp(max=length)
        begin_B = n_B.cumsum(0) - n_B if packed else torch.arange(len(n_B), device=n_B.device) * length
        n_R, row_R = n_B.sort(descending=True, stable=True)
        step_T, rank_T = (n_R > torch.arange(length, device=n_B.device)[:, None]).nonzero(as_tuple=True)
        begin_T = begin_B[row_R][rank_T]
        sizes = tuple(torch.bincount(step_T, minlength=1).tolist()) if len(step_T) else ()
        starts = torch.tensor([0, *accumulate(sizes)], device=n_B.device)
        later_S = slice(sizes[0] if sizes else 0, None)
        before_S = starts[step_T[later_S] - 1] + rank_T[later_S]
        return cls(sizes, torch.stack([begin_T + step_T, begin_T + n_R[rank_T] - 1 - step_T]), before_S)

    def views(self, x_2TD: Tensor) -> tuple[Tensor, ...]:
        """x_2RD of each step."""
        return x_2TD.split(self.sizes, 1)

    def gather(self, x: Tensor) -> Tensor:
        """x_2TD."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self.index_2T.flatten()).unflatten(0, (2, -1))

    def states(self, h: Tensor) -> Tensor:
        """h_2TW of states [h→ ; h←] in the layout of the input."""
        return h.reshape(-1, h.shape[-1] // 2).index_select(0, self._halves()).unflatten(0, (2, -1))

    def restore(self, h_2TW: Tensor, shape: torch.Size) -> Tensor:
        """States [h→ ; h←] in the layout of an input of this shape; zeros where there is no token."""
        tokens = shape[:-1].numel()
        h = h_2TW.new_zeros(tokens * 2, h_2TW.shape[-1])
        return h.index_copy_(0, self._halves(), h_2TW.flatten(0, 1)).view(*shape[:-1], 2 * h_2TW.shape[-1])

    def _halves(self) -> Tensor:
        direction_21 = torch.arange(2, device=self.index_2T.device)[:, None]
        return (2 * self.index_2T + direction_21).flatten()


@no_autocast
def bidirectional_lstm(x: Tensor, n_B: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor) -> Tensor:
    """States [h→ ; h←] of the n_B tokens of each row; gates are (i, f, o, g) for each direction.

    Args:
        x: input features, padded x_BLD or packed x_TD.
        n_B: number of real tokens of each row.
        weight_2DG: input matrices of both directions, G = 4 · W gates.
        bias_2G: biases.
        recurrent_2WG: recurrent matrices.

    Shape: x_BLD → h_BLD or x_TD → h_TD, with 2 · W features.
    """
    return _LSTM.apply(x.to(weight_2DG.dtype), weight_2DG, bias_2G, recurrent_2WG, Steps.of(x, n_B))  # type: ignore[no-untyped-call]


@no_autocast
def bidirectional_gru(
    x: Tensor, n_B: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor, recurrent_bias_2G: Tensor
) -> Tensor:
    """States [h→ ; h←] of the n_B tokens of each row; gates are (r, z, n) for each direction.

    Args:
        x: input features, padded x_BLD or packed x_TD.
        n_B: number of real tokens of each row.
        weight_2DG: input matrices of both directions, G = 3 · W gates.
        bias_2G: biases of the inputs.
        recurrent_2WG: recurrent matrices.
        recurrent_bias_2G: biases of the recurrent products.

    Shape: x_BLD → h_BLD or x_TD → h_TD, with 2 · W features.
    """
    x = x.to(weight_2DG.dtype)
    return _GRU.apply(x, weight_2DG, bias_2G, recurrent_2WG, recurrent_bias_2G, Steps.of(x, n_B))  # type: ignore[no-untyped-call]


def _tanh_(x: Tensor) -> Tensor:
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor, steps: Steps) -> Tensor:
        W = recurrent_2WG.shape[1]
        x_2TD = steps.gather(x)
        gates_2TG = torch.baddbmm(bias_2G.unsqueeze(1), x_2TD, weight_2DG)
        cell_2TW, squashed_2TW, h_2TW = gates_2TG.new_empty(3, 2, x_2TD.shape[1], W)
        gates, i, f, o, g = (steps.views(x) for x in (gates_2TG, *gates_2TG.split(W, -1)))
        cell, squashed, h = (steps.views(x) for x in (cell_2TW, squashed_2TW, h_2TW))
        for t, size in enumerate(steps.sizes):
            if t:
                gates[t].add_(h[t - 1][:, :size] @ recurrent_2WG)
            g[t].mul_(2)
            gates[t].sigmoid_()
            torch.mul(i[t], g[t].mul_(2).sub_(1), out=cell[t])
            if t:
                cell[t].addcmul_(f[t], cell[t - 1][:, :size])
            torch.mul(cell[t], 2, out=squashed[t]).sigmoid_().mul_(2).sub_(1)  # tanh
            torch.mul(o[t], squashed[t], out=h[t])
        ctx.steps, ctx.shape = steps, x.shape
        ctx.save_for_backward(x_2TD, weight_2DG, recurrent_2WG, gates_2TG, cell_2TW, squashed_2TW, h_2TW)
        return steps.restore(h_2TW, x.shape)

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor | None, ...]:
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
        d_h_2TW, d_cell_2RW = steps.states(d_h), gates_2TG.new_zeros(2, first, W)
        d_gates, d_if, d_o, d_g = (steps.views(x) for x in (d_gates_2TG, d_gates_2TG[..., : 2 * W].unflatten(-1, (2, W)), d_o, d_g))
        d_out, through, f = (steps.views(x) for x in (d_h_2TW, through_cell_2TW, f))
        for t, size in reversed(list(enumerate(steps.sizes))):
            d_cell = d_cell_2RW[:, :size].addcmul_(d_out[t], through[t])
            d_if[t].mul_(d_cell.unsqueeze(2))
            d_o[t].mul_(d_out[t])
            d_g[t].mul_(d_cell)
            if t:
                d_cell.mul_(f[t])
                d_out[t - 1][:, :size].add_(d_gates[t] @ recurrent_2WG.mT)
        d_recurrent_2WG = h_2TW.index_select(1, steps.before_S).mT @ d_gates_2TG[:, first:]
        return *_input_gradients(ctx, x_2TD, weight_2DG, d_gates_2TG), d_recurrent_2WG, None


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_2DG: Tensor, bias_2G: Tensor, recurrent_2WG: Tensor, recurrent_bias_2G: Tensor, steps: Steps
    ) -> Tensor:
        W = recurrent_2WG.shape[1]
        x_2TD = steps.gather(x)
        gates_2TG = torch.baddbmm(bias_2G.unsqueeze(1), x_2TD, weight_2DG)
        gates_2TG[..., : 2 * W] += recurrent_bias_2G[:, None, : 2 * W]
        h_2TW, inner_2TW = gates_2TG.new_empty(2, 2, x_2TD.shape[1], W)  # inner: n' = U h + b'
        inner_2TW.copy_(recurrent_bias_2G[:, None, 2 * W :].expand_as(inner_2TW))
        r, z, n = gates_2TG.split(W, -1)
        gates, r, z, n, inner, h = (steps.views(x) for x in (gates_2TG[..., : 2 * W], r, z, n, inner_2TW, h_2TW))
        for t, size in enumerate(steps.sizes):
            if t:
                from_h_2RG = h[t - 1][:, :size] @ recurrent_2WG
                gates[t].add_(from_h_2RG[..., : 2 * W])
                inner[t].add_(from_h_2RG[..., 2 * W :])
            gates[t].sigmoid_()
            _tanh_(n[t].addcmul_(r[t], inner[t]))
            if t:
                torch.lerp(n[t], h[t - 1][:, :size], z[t], out=h[t])
            else:
                torch.addcmul(n[t], n[t], z[t], value=-1, out=h[t])
        ctx.steps, ctx.shape = steps, x.shape
        ctx.save_for_backward(x_2TD, weight_2DG, recurrent_2WG, gates_2TG, inner_2TW, h_2TW)
        return steps.restore(h_2TW, x.shape)

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor | None, ...]:
        x_2TD, weight_2DG, recurrent_2WG, gates_2TG, inner_2TW, h_2TW = ctx.saved_tensors
        steps, W = ctx.steps, recurrent_2WG.shape[1]
        first = steps.sizes[0] if steps.sizes else 0
        r, z, n = gates_2TG.split(W, -1)
        before_2SW = h_2TW.index_select(1, steps.before_S)
        # d h / d (each gate's input), without what comes from later steps; of n that of its part from h, r n', and that of the rest
        from_h_2TG, d_n_2TW = torch.empty_like(gates_2TG), torch.mul(1 - z, 1 - n * n)
        d_r, d_z, d_inner = from_h_2TG.split(W, -1)
        torch.addcmul(z, z, z, value=-1, out=d_z)
        d_z[:, :first].mul_(n[:, :first].neg())
        d_z[:, first:].mul_(before_2SW - n[:, first:])
        torch.mul(r - r * r, inner_2TW, out=d_r)
        d_r.mul_(d_n_2TW)
        torch.mul(d_n_2TW, r, out=d_inner)
        d_h_2TW = steps.states(d_h)
        d_from_h, d_gates, d_n, d_out, z = (steps.views(x) for x in (from_h_2TG, from_h_2TG.unflatten(-1, (3, W)), d_n_2TW, d_h_2TW, z))
        for t, size in reversed(list(enumerate(steps.sizes))):
            d_gates[t].mul_(d_out[t].unsqueeze(2))
            d_n[t].mul_(d_out[t])
            if t:
                d_out[t - 1][:, :size].addcmul_(d_out[t], z[t]).add_(d_from_h[t] @ recurrent_2WG.mT)
        d_recurrent_2WG = before_2SW.mT @ from_h_2TG[:, first:]
        d_gates_2TG = torch.cat([from_h_2TG[..., : 2 * W], d_n_2TW], -1)
        return *_input_gradients(ctx, x_2TD, weight_2DG, d_gates_2TG), d_recurrent_2WG, from_h_2TG.sum(1), None


def _input_gradients(ctx: Any, x_2TD: Tensor, weight_2DG: Tensor, d_gates_2TG: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """Compute the gradients of the input, if it needs one, of the weight and of the bias."""
    d_x = None
    if ctx.needs_input_grad[0]:
        d_x_2TD = d_gates_2TG @ weight_2DG.mT
        d_x = d_x_2TD.new_zeros(ctx.shape[:-1].numel(), ctx.shape[-1])
        d_x = d_x.index_add_(0, ctx.steps.index_2T.flatten(), d_x_2TD.flatten(0, 1)).view(ctx.shape)
    return d_x, x_2TD.mT @ d_gates_2TG, d_gates_2TG.sum(1)

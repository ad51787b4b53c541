"""Sparse Sinkhorn attention: key blocks are softly sorted; each query block attends to its own and the one sorted to it."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..bounds import Count, NonNegative, Positive, Size
from ..kernels import accumulation_dtype, attend, attend_tile, attend_tile_backward, first_derivatives_only
from ..patterns import Pattern, causal, full
from ._base import Attention, Call, Facts, Paper
from .helpers import float32_or_wider, is_causal, no_autocast, real_lengths, share_heads, softmax_where

LOW = -1e9  # the logarithm of zero, finite so that gradients are
LEAST = 1e-9  # a sorted position with a smaller share of keys counts as empty: its gradient divides by the share


class SinkhornAttention(Attention):
    r"""A near-permutation matrix S sorts blocks of keys and values; queries attend to their own block and the sorted one.

    $$o_i = \sum_{j \in u} p_{ij} v_j + \sum_{t} p'_{it} v'_{ut}, \qquad (p_i, p'_i) = \mathrm{softmax}\big([q_i^\top k_j;\; q_i^\top k'_{ut}]
      / \sqrt{K}\big), \qquad k'_{ut} = \sum_v S_{uv} k_{vt}, \; v' \text{ alike}$$

    for i in block u; $k_{vt}$ is key t of block v. S comes from the dot products of the blocks' mean queries and mean keys,
    $(\bar q_u^\top \bar k_v / \sqrt{K} + \epsilon) / \tau$, by Sinkhorn iterations: columns and rows are made to sum to one in turn.

    Cost:    time O(L·c·K + (L/c)·L·K) for blocks of c, memory O(L·c + (L/c)²).
    Use it:  where a block corresponds to another whole block: copies, translations, tables.
    Avoid it: where single distant tokens matter: a sorted block is a mixture, and all its keys move together.
    Limits:  `full`, `causal`, `lengths` and `causal & lengths`. No bias, no streaming. Under `causal` only earlier blocks are
             sorted to a block; its mean query is over all positions up to its first, and columns are summed over the blocks so
             far: nothing of the future enters. Where a mixture lacks a key (padding, the end of the last block), the rest of it
             counts by its share of S. `noise=1` adds Gumbel noise ε in training, drawn from `generator` or PyTorch's global one.
    Args:
        block: keys per block c.
        iterations: Sinkhorn iterations.
        temperature: τ; the lower, the nearer S is to a permutation.
        noise: scale of the Gumbel noise ε in training; 0: none.
        generator: random number generator of the noise; None: PyTorch's global one.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Tay, Bahri, Yang, Metzler & Juan 2020, "Sparse Sinkhorn attention", arXiv:2002.11296, sections 3.1–3.3.
    We differ: the paper scores blocks by a small network with one output per block, which fixes the length; dot products
             of means, as in public implementations, do not. Rows are normalised last, so that they sum to one exactly.
    """

    facts = Facts(
        name="sinkhorn",
        paper=Paper("Sparse Sinkhorn attention", 2020, "arXiv:2002.11296"),
        formula="softmax(q·[k; S k] / √K) [v; S v],  S = sinkhorn(q̄·k̄)",
        time="L·c·K + L²·K/c",
        memory="L·c + (L/c)²",
        patterns=("full", "causal", "lengths"),
        rows="sequential",
        cross=False,
        state=None,
        positional=True,
        bias=False,
    )

    def __init__(
        self,
        *,
        block: Size = 64,
        iterations: Count = 8,
        temperature: Positive = 0.75,
        noise: NonNegative = 0.0,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.block, self.iterations, self.temperature, self.noise, self.generator = block, iterations, temperature, noise, generator

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(block=min(64, max(4, length // 16)))

    def sort(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full) -> Tensor:
        """S, sort_BHUV: the share of block v in sorted block u. Rows sum to one, or to zero where no block is allowed.

        Args:
            q_BLHK: queries.
            k_BMHK: keys.
            pattern: pattern of the call.
        """
        L, H, K = q_BLHK.shape[1:]
        q_BLHK, k_BMHK = (float32_or_wider(x) for x in (q_BLHK, share_heads(k_BMHK, H)))
        filled_BUC = filled_slots(pattern, L, self.block, q_BLHK.device)
        real_B1U = filled_BUC.any(-1).unsqueeze(1)
        if is_causal(pattern):
            so_far = torch.arange(1, L + 1, device=q_BLHK.device).view(L, 1, 1)
            mean_BUHK = (q_BLHK.cumsum(1) / so_far)[:, :: self.block]
            U = mean_BUHK.shape[1]
            earlier_UV = torch.ones(U, U, dtype=torch.bool, device=q_BLHK.device).tril(-1)
            allowed_BHUV, count_BHU1 = real_B1U.unsqueeze(-2) & earlier_UV, None
        else:
            mean_BUHK = block_means(q_BLHK, filled_BUC)
            allowed_BHUV, count_BHU1 = real_B1U.unsqueeze(-2), real_B1U.unsqueeze(-1).to(q_BLHK.dtype)
        scores_BHUV = torch.einsum("buhk,bvhk->bhuv", mean_BUHK, block_means(k_BMHK, filled_BUC)) * K**-0.5
        scores_BHUV = (scores_BHUV + gumbel(self, scores_BHUV, self.noise, self.generator)) / self.temperature
        return sinkhorn_normalise(scores_BHUV, allowed_BHUV, count_BHU1, self.iterations)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        pattern, (L, H, K) = call.pattern, q_BLHK.shape[1:]
        k_BMHK, at_L = share_heads(k_BMHK, H), torch.arange(L, device=q_BLHK.device)
        mixed_BHPM, share_BHP = sort_matrix(self.sort(q_BLHK, k_BMHK, pattern).to(q_BLHK.dtype), pattern, L, self.block)
        own_LM = at_L[:, None] // self.block == at_L // self.block
        matched_LP = at_L[:, None] // self.block == torch.arange(share_BHP.shape[-1], device=q_BLHK.device) // self.block
        sorted_BPHK = torch.einsum("bhpm,bmhk->bphk", mixed_BHPM, k_BMHK)
        scores_BHLX = torch.einsum("blhk,bxhk->bhlx", q_BLHK, torch.cat([k_BMHK, sorted_BPHK], 1)) * K**-0.5
        scores_BHLX = scores_BHLX + F.pad(safe_log(share_BHP), (L, 0)).unsqueeze(-2)
        own_BHLM = (call.mask() & own_LM).expand(*scores_BHLX.shape[:3], L)
        allowed_BHLX = torch.cat([own_BHLM, matched_LP & (share_BHP > 0).unsqueeze(-2)], -1)
        weights_BHLX = softmax_where(scores_BHLX, allowed_BHLX)
        return weights_BHLX[..., :L] + weights_BHLX[..., L:] @ mixed_BHPM

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        pattern, (L, H, K) = call.pattern, q_BLHK.shape[1:]
        k_BMHK, v_BMHV = share_heads(k_BMHK, H), share_heads(v_BMHV, H)
        filled_BUC = filled_slots(pattern, L, self.block, q_BLHK.device)
        sort_BHUV = self.sort(q_BLHK, k_BMHK, pattern)
        if self.block < L and bool(filled_BUC.all()):
            return self._unpadded(q_BLHK, k_BMHK, v_BMHV, sort_BHUV, causal if is_causal(pattern) else full)
        own_BHUCC = filled_BUC[:, None, :, None]
        if is_causal(pattern):
            own_BHUCC = own_BHUCC & torch.ones(self.block, self.block, dtype=torch.bool, device=q_BLHK.device).tril()
        q_BHUCK, k_BHUCK, v_BHUCV = (to_blocks(x, self.block) for x in (q_BLHK, k_BMHK, v_BMHV))
        share_BHUC, sorted_BHUCK, sorted_BHUCV = sort_blocks(sort_BHUV, filled_BUC, k_BHUCK, v_BHUCV)
        scores_BHUCS = q_BHUCK @ torch.cat([k_BHUCK, sorted_BHUCK], -2).transpose(-1, -2) * K**-0.5
        scores_BHUCS = scores_BHUCS.to(share_BHUC.dtype) + F.pad(safe_log(share_BHUC), (self.block, 0)).unsqueeze(-2)
        sorted_BHUCC = (share_BHUC > 0).unsqueeze(-2).expand(*scores_BHUCS.shape[:-1], self.block)
        weights_BHUCS = softmax_where(scores_BHUCS, torch.cat([own_BHUCC.expand_as(sorted_BHUCC), sorted_BHUCC], -1))
        out_BHUCV = weights_BHUCS.to(v_BMHV.dtype) @ torch.cat([v_BHUCV, sorted_BHUCV], -2)
        return out_BHUCV.flatten(2, 3)[:, :, :L].transpose(1, 2)

    def _unpadded(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, sort_BHUV: Tensor, pattern: Pattern) -> Tensor:
        """Without padding every share is one, and blocks are batch rows of exact attention: no scores are stored."""
        q_BUCHK, k_BUCHK, v_BUCHV = (x.unflatten(1, (-1, self.block)) for x in (q_BLHK, k_BMHK, v_BMHV))
        if pattern is full:
            return SortedBlocks.apply(q_BUCHK, k_BUCHK, v_BUCHV, sort_BHUV, None).flatten(1, 2)  # type: ignore[no-untyped-call]
        first_BLHV = attend(q_BUCHK[:, 0], k_BUCHK[:, 0], v_BUCHV[:, 0], pattern)  # nothing is sorted to it
        later_CS = pattern.mask(self.block, 2 * self.block, q_BLHK.device)[0, 0]  # own keys last: there `causal` is aligned
        out_BUCHV = SortedBlocks.apply(q_BUCHK[:, 1:], k_BUCHK, v_BUCHV, sort_BHUV[:, :, 1:], later_CS)  # type: ignore[no-untyped-call]
        return torch.cat([first_BLHV, out_BUCHV.flatten(1, 2)], 1)


class SortedBlocks(torch.autograd.Function):
    """Each of the last U blocks of queries attends to its sorted block, a mixture of all V, and to its own.

    Heads are processed one by one, and mixtures recomputed in the backward pass, so those of all heads never coexist (4,096 tokens, 8 heads
    of 64, with projections, forward + backward: 119 MiB instead of 177).
    """

    @staticmethod
    @no_autocast
    def forward(ctx: Any, q_BUCHK: Tensor, k_BVCHK: Tensor, v_BVCHV: Tensor, sort_BHUV: Tensor, mask_CS: Tensor | None) -> Tensor:
        (B, U, C, H, K), V, dtype = q_BUCHK.shape, v_BVCHV.shape[-1], accumulation_dtype(q_BUCHK)
        out_BUCHV, lse_HN1C = q_BUCHK.new_empty(B, U, C, H, V), q_BUCHK.new_empty(H, B * U, 1, C, dtype=dtype)
        ctx.added = None if mask_CS is None else torch.zeros_like(mask_CS, dtype=dtype).masked_fill_(~mask_CS, -torch.inf)[None, None]
        for h in range(H):
            k_N1SK, v_N1SV = (_sorted_and_own(x, sort_BHUV, h, dtype) for x in (k_BVCHK, v_BVCHV))
            out_N1CV, lse_HN1C[h] = attend_tile(_head(q_BUCHK, h, dtype), k_N1SK, v_N1SV, K**-0.5, ctx.added)
            out_BUCHV[:, :, :, h] = out_N1CV.view(B, U, C, V)
        ctx.save_for_backward(q_BUCHK, k_BVCHK, v_BVCHV, sort_BHUV, out_BUCHV, lse_HN1C)
        return out_BUCHV

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, do_BUCHV: Tensor) -> tuple[Tensor | None, ...]:
        q_BUCHK, k_BVCHK, v_BVCHV, sort_BHUV, out_BUCHV, lse_HN1C = ctx.saved_tensors
        (B, U, C, H, K), dtype = q_BUCHK.shape, lse_HN1C.dtype
        dq_BUCHK, dk_BVCHK, dv_BVCHV = (torch.empty_like(x) for x in (q_BUCHK, k_BVCHK, v_BVCHV))
        dsort_BHUV = torch.zeros_like(sort_BHUV, dtype=dtype)
        for h in range(H):
            k_N1SK, v_N1SV = (_sorted_and_own(x, sort_BHUV, h, dtype) for x in (k_BVCHK, v_BVCHV))
            q_N1CK, do_N1CV, out_N1CV = (_head(x, h, dtype) for x in (q_BUCHK, do_BUCHV, out_BUCHV))
            dq_N1CK, dk_N1SK, dv_N1SV = attend_tile_backward(do_N1CV, q_N1CK, k_N1SK, v_N1SV, out_N1CV, lse_HN1C[h], K**-0.5, ctx.added)
            dq_BUCHK[:, :, :, h] = dq_N1CK.view(B, U, C, K)
            for x_BVCHK, d_BVCHK, d_N1SK in ((k_BVCHK, dk_BVCHK, dk_N1SK), (v_BVCHV, dv_BVCHV, dv_N1SV)):
                sorted_BUX, own_BUX = d_N1SK.view(B, U, 2, -1).unbind(2)
                d_BVX = torch.bmm(sort_BHUV[:, h].mT.to(dtype), sorted_BUX)
                d_BVX[:, -U:] += own_BUX
                d_BVCHK[:, :, :, h] = d_BVX.view_as(d_BVCHK[:, :, :, h])
                dsort_BHUV[:, h].baddbmm_(sorted_BUX, x_BVCHK[:, :, :, h].to(dtype).flatten(2).mT)
        return dq_BUCHK, dk_BVCHK, dv_BVCHV, dsort_BHUV.to(sort_BHUV.dtype), None


def _head(x_BUCHK: Tensor, h: int, dtype: torch.dtype) -> Tensor:
    """The blocks of one head as a batch, x_N1CK, with contiguous features."""
    x_BUCK = x_BUCHK[:, :, :, h].to(dtype)
    return (x_BUCK if x_BUCK.stride(-1) == 1 else x_BUCK.contiguous()).flatten(0, 1).unsqueeze(1)


def _sorted_and_own(x_BVCHK: Tensor, sort_BHUV: Tensor, h: int, dtype: torch.dtype) -> Tensor:
    """The sorted block of each of the last U blocks, followed by its own, x_N1SK, S = 2C."""
    x_BVCK, sort_BUV = x_BVCHK[:, :, :, h].to(dtype), sort_BHUV[:, h].to(dtype)
    (B, U, V), (C, K) = sort_BUV.shape, x_BVCK.shape[-2:]
    both_BU2CK = x_BVCK.new_empty(B, U, 2, C, K)
    both_BU2CK[:, :, 0] = torch.bmm(sort_BUV, x_BVCK.flatten(2)).view(B, U, C, K)
    both_BU2CK[:, :, 1] = x_BVCK[:, V - U :]
    return both_BU2CK.view(B * U, 1, 2 * C, K)


# -- sorting blocks, here and in SortCut -------------------------------------------------------------


def filled_slots(pattern: Pattern, keys: int, block: int, device: torch.device) -> Tensor:
    """Mark the positions of each block that hold a key: filled_BUC. Padding and the end of the last block do not."""
    positions = torch.arange(-(-keys // block) * block, device=device).view(-1, block)
    return positions < real_lengths(pattern, keys, device).view(-1, 1, 1)


def to_blocks(x_BLHK: Tensor, block: int) -> Tensor:
    """x_BHUCK, zero-padded at the end of the last block."""
    x_BLHK = F.pad(x_BLHK, (0, 0, 0, 0, 0, -x_BLHK.shape[1] % block))
    return x_BLHK.unflatten(1, (x_BLHK.shape[1] // block, block)).permute(0, 3, 1, 2, 4)


def block_means(x_BLHK: Tensor, filled_BUC: Tensor) -> Tensor:
    """The mean of each block, mean_BUHK; zeros where it is empty."""
    if x_BLHK.shape[1] == filled_BUC.shape[1:].numel() and bool(filled_BUC.all()):
        return x_BLHK.unflatten(1, filled_BUC.shape[1:]).mean(2)
    filled_BUC = filled_BUC.to(x_BLHK.dtype)
    sum_BUHK = (to_blocks(x_BLHK, filled_BUC.shape[-1]) * filled_BUC[:, None, ..., None]).sum(3).transpose(1, 2)
    return sum_BUHK / filled_BUC.sum(-1).clamp(min=1)[..., None, None]


def gumbel(mechanism: Attention, like: Tensor, size: float, generator: torch.Generator | None) -> Tensor | float:
    """Gumbel noise in training, else 0."""
    if not (size and mechanism.training):
        return 0.0
    device = like.device if generator is None else generator.device
    draw = torch.rand(like.shape, generator=generator, dtype=torch.float64, device=device).clamp(min=1e-300)
    return (-size * (-draw.log()).clamp(min=1e-300).log()).to(like)


def sinkhorn_normalise(scores_BHUV: Tensor, allowed_BHUV: Tensor, count_BHU1: Tensor | None, iterations: int) -> Tensor:
    """Make columns and rows sum to one in turn, rows last; zeros where not `allowed`.

    Row u counts `count` times in its columns; None is the causal form: columns are summed over the rows so far.
    """
    if count_BHU1 is not None and bool((count_BHU1 == 1).all()) and bool(allowed_BHUV.all()):
        for _ in range(iterations):
            scores_BHUV = scores_BHUV.log_softmax(-2).log_softmax(-1)
        return scores_BHUV.softmax(-1)
    scores_BHUV = scores_BHUV.masked_fill(~allowed_BHUV, LOW)
    for _ in range(iterations):
        if count_BHU1 is None:
            columns = _log_cumulative_sum(scores_BHUV)
        else:
            columns = (scores_BHUV + safe_log(count_BHU1)).masked_fill(count_BHU1 == 0, LOW).logsumexp(-2, keepdim=True)
        scores_BHUV = (scores_BHUV - columns).masked_fill(~allowed_BHUV, LOW)
        scores_BHUV = (scores_BHUV - scores_BHUV.logsumexp(-1, keepdim=True)).masked_fill(~allowed_BHUV, LOW)
    return softmax_where(scores_BHUV, allowed_BHUV)


def _log_cumulative_sum(x_BHUV: Tensor) -> Tensor:
    """log Σ exp x over the rows so far, in log U steps. The second derivative of PyTorch's logcumsumexp is NaN where a gradient is zero,
    and that of logaddexp where its arguments are far apart."""
    ahead = 1
    while ahead < x_BHUV.shape[-2]:
        both = torch.stack([x_BHUV[..., ahead:, :], x_BHUV[..., :-ahead, :]])
        x_BHUV = torch.cat([x_BHUV[..., :ahead, :], both.logsumexp(0)], -2)
        ahead *= 2
    return x_BHUV


def sort_blocks(sort_BHUV: Tensor, filled_BVC: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """The share of keys at each sorted position, share_BHUC, and the mixtures of those keys, x_BHUCK per part."""
    keep_BVC = filled_BVC.to(sort_BHUV.dtype)
    share_BHUC = _drop_tiny(torch.einsum("bhuv,bvc->bhuc", sort_BHUV, keep_BVC.expand(len(sort_BHUV), -1, -1)))
    whole = share_BHUC.masked_fill(share_BHUC == 0, 1).unsqueeze(-1)
    mixed = []
    for x_BHVCK in parts:
        x_BHVX = (x_BHVCK * keep_BVC[:, None, ..., None].to(x_BHVCK.dtype)).flatten(-2)
        x_BHUCK = (sort_BHUV.to(x_BHVCK.dtype) @ x_BHVX).unflatten(-1, x_BHVCK.shape[-2:])
        mixed.append((x_BHUCK.to(whole.dtype) / whole).to(x_BHVCK.dtype))
    return share_BHUC, *mixed


def sort_matrix(sort_BHUV: Tensor, pattern: Pattern, keys: int, block: int) -> tuple[Tensor, Tensor]:
    """The definition of each sorted position: mixed_BHPM, whose rows sum to one (or zero), and the share of S behind it."""
    position_P, j = (torch.arange(n, device=sort_BHUV.device) for n in (sort_BHUV.shape[-2] * block, keys))
    same_PM = position_P[:, None] % block == j % block
    real_BM = j < real_lengths(pattern, keys, j.device)[:, None]
    mixed_BHPM = sort_BHUV[:, :, position_P // block][..., j // block] * same_PM * real_BM[:, None, None]
    share_BHP = _drop_tiny(mixed_BHPM.sum(-1))
    return mixed_BHPM / share_BHP.masked_fill(share_BHP == 0, 1).unsqueeze(-1), share_BHP


def safe_log(x: Tensor) -> Tensor:
    """log x, but zero with a zero gradient at x = 0, to be masked afterwards."""
    return x.masked_fill(x == 0, 1).log()


def _drop_tiny(share: Tensor) -> Tensor:
    return share.masked_fill(share < LEAST, 0)

"""Reformer's LSH attention: attend only to positions in the same buckets of random hash functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ..bounds import MOST, Seed, Size
from ..kernels import HIDE, SCORES_AT_ONCE, Scratch, first_derivatives_only
from ..patterns import Causal, Full, Pattern, full
from ._base import Attention, Call, Facts, Paper
from ._gather import allowed_pairs, slices
from .helpers import float32_or_wider, no_autocast, real_lengths, share_heads, softmax_where

Buckets = Annotated[int, Meta(ge=2, le=MOST, multiple_of=2)]
TINY = 1e-12  # a key with a smaller norm has no direction


class LSHAttention(Attention):
    r"""Positions are sorted by a hash of their vector and split into chunks; each attends to its own chunk and the previous one.

    $$o_i = \sum_{j \in P_i} \mathrm{softmax}_j\big(q_i^\top k_j / \|k_j\|\big)\, v_j, \qquad
      P_i = \bigcup_r \Big\{ j \ne i : \lceil s^r_i / c \rceil - 1 \le \lceil s^r_j / c \rceil \le \lceil s^r_i / c \rceil \Big\}$$

    $s^r_i$ is the rank of i when positions are sorted by (bucket, position) in round r; the bucket is
    $\arg\max[q_i R_r; -q_i R_r]$ with a random matrix $R_r$. A position attends to itself only if no other is allowed.

    Cost:    time O(R·L·(c·K + log L)) for R rounds and chunks of c; memory O(R·L·K) for a group of heads plus the
             scores of a few chunks, in training too: they are recomputed in the backward pass.
    Use it:  for sequences of many thousand tokens in which a few distant, similar ones matter; a trained model may
             use more rounds afterwards (`attention.rounds = 8`).
    Avoid it: below a thousand tokens, where exact attention is faster; where queries and keys must differ.
    Limits:  q and k should be the same vector, as with `MultiHead(shared_qk=True)`. If not, the formula still holds: positions
             are sorted by the queries, directions are those of the keys. The pattern masks pairs, but a future token may shift
             the borders of chunks: causal as a mask only. Padding is sorted last, so it changes nothing. No bias, no streaming.
             `seed=None` draws new hash functions at each call from PyTorch's global generator; any other seed fixes them.
    Args:
        rounds: number of hash rounds R; more rounds find more of the similar pairs.
        chunk: positions per chunk c.
        buckets: number of hash buckets, even; several numbers: their product, from one hash each.
        seed: seed of the hash functions; None: new ones at each call, from PyTorch's global generator.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Kitaev, Kaiser & Levskaya 2020, "Reformer: the efficient transformer", arXiv:2001.04451, eq. 2–6.
    We differ: as in the authors' code, scores are not divided by √K, and pairs in a chunk count whether or not
             their buckets agree. Unlike there, the first chunk has no previous one (there, the last chunk of
             another round), pairs that meet in several rounds count once, in the first, and attending to oneself is
             ruled out, not just made unlikely. `buckets=(32, 64)` means 2,048 buckets from two hashes of 32 and 64.
    """

    facts = Facts(
        name="lsh",
        paper=Paper("Reformer: the efficient transformer", 2020, "arXiv:2001.04451"),
        formula="softmax(q·k / ‖k‖) v,  within chunks of like hash",
        time="R·L·(c·K + log L)",
        memory="R·L·K",
        rows="joint",
        cross=False,
        state=None,
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(
        self,
        *,
        rounds: Size = 4,
        chunk: Size = 64,
        buckets: Buckets | Annotated[tuple[Buckets, ...], Meta(min_length=1)] = 64,
        seed: Seed | None = 0,
    ):
        super().__init__()
        self.buckets = (buckets,) if isinstance(buckets, int) else tuple(buckets)
        self.rounds, self.chunk, self.seed = rounds, chunk, seed

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        chunk = min(64, max(4, length // 16))
        return cls(chunk=chunk, buckets=2 * max(1, -(-length // chunk)))  # half a chunk per bucket on average, as in the paper

    @no_autocast
    def hash(self, q_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        """The bucket of each position in each round, bucket_BHRL; padding has its own bucket, the last."""
        B, L, H, K = q_BLHK.shape
        x_NLK = float32_or_wider(q_BLHK.detach().transpose(1, 2)).flatten(0, 1)
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())) if self.seed is None else self.seed)
        rotations = [torch.randn(H, K, size // 2, generator=generator) for _ in range(self.rounds) for size in self.buckets]
        rotation_NKX = torch.cat(rotations, -1).to(x_NLK).repeat(B, 1, 1)
        bucket_NRL = torch.empty(B * H, self.rounds, L, dtype=torch.long, device=x_NLK.device)
        numbers = 2 * SCORES_AT_ONCE // max(1, rotation_NKX.shape[-1])  # positions at once: as many buckets as tokens would take L² numbers
        for heads, tokens in product(slices(B * H, numbers // max(1, L)), slices(L, numbers)):
            rotated_NLRX = torch.bmm(x_NLK[heads, tokens], rotation_NKX[heads]).unflatten(-1, (self.rounds, -1))
            bucket_NLR, factor = torch.zeros((), dtype=torch.long, device=x_NLK.device), 1
            for size, part_NLRX in zip(self.buckets, rotated_NLRX.split([size // 2 for size in self.buckets], -1), strict=True):
                nearest_NLR1 = part_NLRX.abs().argmax(-1, keepdim=True)
                negative_NLR1 = part_NLRX.gather(-1, nearest_NLR1) < 0
                bucket_NLR = bucket_NLR + factor * (nearest_NLR1 + size // 2 * negative_NLR1).squeeze(-1)
                factor *= size
            bucket_NRL[heads, :, tokens] = bucket_NLR.mT
        padding_BL = torch.arange(L, device=x_NLK.device) >= real_lengths(pattern, L, x_NLK.device)[:, None]
        return bucket_NRL.view(B, H, self.rounds, L).masked_fill_(padding_BL[:, None, None], math.prod(self.buckets))

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        bucket_BHRL, at_L = self.hash(q_BLHK, call.pattern), torch.arange(call.queries, device=call.device)
        mine, other = bucket_BHRL.unsqueeze(-1), bucket_BHRL.unsqueeze(-2)
        rank_BHRL = ((other < mine) | (other == mine) & (at_L < at_L[:, None])).sum(-1)  # positions sorted before it
        chunk_BHRL = rank_BHRL // self.chunk
        back_BHRLM = chunk_BHRL.unsqueeze(-1) - chunk_BHRL.unsqueeze(-2)
        allowed_BHLM = ((back_BHRLM == 0) | (back_BHRLM == 1)).any(2) & call.mask()
        others_BHLM = allowed_BHLM & (at_L != at_L[:, None])
        allowed_BHLM = torch.where(others_BHLM.any(-1, keepdim=True), others_BHLM, allowed_BHLM)
        return softmax_where(
            torch.einsum("blhk,bmhk->bhlm", q_BLHK, F.normalize(share_heads(k_BMHK, q_BLHK.shape[2]), dim=-1)), allowed_BHLM
        )

    @no_autocast
    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        k_BMHK, v_BMHV = (share_heads(x, q_BLHK.shape[2]) for x in (k_BMHK, v_BMHV))
        dtype = torch.promote_types(q_BLHK.dtype, torch.float32)
        order = ChunkOrder(self.hash(q_BLHK, call.pattern), min(self.chunk, call.queries), call.pattern, dtype)
        return ChunkedAttention.apply(order, q_BLHK, k_BMHK, v_BMHV)  # type: ignore[no-untyped-call]


class ChunkOrder:
    """The order of positions of all N = B·H heads, sorted in each of R rounds and split into T chunks of C slots.

    The chunks of all heads in one round form one row. The padding slots at the end of a head's last chunk and before the very first chunk
    hold position 0, which is masked as a key and whose result as a query is not read.
    """

    def __init__(self, bucket_BHRL: Tensor, size: int, pattern: Pattern, dtype: torch.dtype):
        (B, self.H, self.R, self.L), device = bucket_BHRL.shape, bucket_BHRL.device
        self.N, self.C, self.T, self.pattern = B * self.H, size, -(-self.L // size), pattern.fit(self.L, self.L)
        self.chunks_at_once = max(1, SCORES_AT_ONCE // (2 * size**2))  # chunks processed together
        at_RNL = bucket_BHRL.flatten(0, 1).transpose(0, 1).sort(dim=-1, stable=True).indices  # the position in each slot
        self.rank_RNL = torch.empty_like(at_RNL).scatter_(-1, at_RNL, torch.arange(self.L, device=device).expand_as(at_RNL))
        at_RNP = F.pad(at_RNL, (0, self.T * size - self.L))
        row_RNP = at_RNP + torch.arange(self.N, device=device)[:, None] * self.L
        chunk_RNL = (self.rank_RNL // size).to(dtype)
        chunk_of_ERNP = (chunk_RNL[e].expand_as(at_RNL).gather(-1, at_RNP) for e in range(self.R - 1))
        self.row_RX, self.at_RX, *self.chunk_of_ERX = (F.pad(x.flatten(1), (size, 0)) for x in (row_RNP, at_RNP.to(dtype), *chunk_of_ERNP))

    def groups(self) -> list[slice]:
        """Groups of heads whose chunks of a round are processed together."""
        return slices(self.N, self.chunks_at_once // self.T)

    def pieces(self, heads: slice) -> Iterator[tuple[int, slice]]:
        """Rounds and, in each, the chunks of these heads, a few at a time."""
        for r in range(self.R):
            for chunks in slices((heads.stop - heads.start) * self.T, self.chunks_at_once):
                yield r, slice(heads.start * self.T + chunks.start, heads.start * self.T + chunks.stop)

    def slots(self, heads: slice) -> Tensor:
        """The slot of each position of these heads, slot_XR, counting the slots of all of them in round 0, in round 1 …"""
        rank_NLR, n, device = self.rank_RNL[:, heads].permute(1, 2, 0), heads.stop - heads.start, self.rank_RNL.device
        first_N1R = torch.arange(n, device=device).view(-1, 1, 1) + torch.arange(self.R, device=device) * n
        return (rank_NLR + first_N1R * (self.T * self.C)).flatten(0, 1)

    def row(self, r: int, chunks: slice) -> Tensor:
        """The positions in the previous chunk and in these chunks, as rows of N·L."""
        return self.row_RX[r, self._span(chunks)]

    def hidden(self, r: int, chunks: slice, scratch: Scratch) -> Tensor:
        """The mask over each chunk and its window: zero for pairs that count, −1 or less elsewhere, hidden_GCS.

        Computed by arithmetic: comparisons take five times as long, `where` forty times.
        """
        C, T, span = self.C, self.T, self._span(chunks)
        far, near = (scratch(name, chunks.stop - chunks.start, C, 2 * C) for name in ("scores", "more"))
        if isinstance(self.pattern, Causal):
            i, j = self._pairs(self.at_RX[r, span])
            torch.sub(i + 0.5, j, out=far)  # at least 1.5 where j < i
        else:
            far.copy_(2 - 2 * torch.eye(C, 2 * C, dtype=far.dtype, device=far.device).roll(C, 1))  # at least 1.5 except for i = j
            if not isinstance(self.pattern, Full):
                i, j = self._pairs(self.row_RX[r, span])
                far.mul_(allowed_pairs(self.pattern, i, j, self.H, self.L))
        for chunk_RX in self.chunk_of_ERX[:r]:  # pairs that met in an earlier round: j was in the chunk of i or the one before
            i, j = self._pairs(chunk_RX[r, span])
            torch.minimum(far, torch.sub(i - 0.5, j, out=near).abs_(), out=far)
        far[-chunks.start % T :: T, :, :C] = 0  # the first chunk of a head has no previous one
        if self.L % C:
            far[(T - 1 - chunks.start) % T :: T, :, C + self.L % C :] = 0
        return far.clamp_max_(1.5).sub_(1.5)

    def fill_padding(self, x_GC1: Tensor, chunks: slice, value: float) -> Tensor:
        """x with `value` in padding slots."""
        if self.L % self.C:
            x_GC1[(self.T - 1 - chunks.start) % self.T :: self.T, self.L % self.C :] = value
        return x_GC1

    def self_attending(self, alone_NL: Tensor) -> Tensor:
        """Find the positions that attend to no other and may attend to themselves, as rows of N·L."""
        row = alone_NL.flatten().nonzero().squeeze(-1)
        return row[allowed_pairs(self.pattern, row, row, self.H, self.L).expand_as(row)]

    def _span(self, chunks: slice) -> slice:
        return slice(chunks.start * self.C, (chunks.stop + 1) * self.C)

    def _pairs(self, x_X: Tensor) -> tuple[Tensor, Tensor]:
        """View it as queries by chunks, (G, C, 1), and as keys by windows, (G, 1, 2C)."""
        return x_X[self.C :].view(-1, self.C, 1), x_X.unfold(0, 2 * self.C, self.C).unsqueeze(1)


class ChunkedAttention(torch.autograd.Function):
    """Softmax attention over the windows of all rounds, a few chunks at a time, recomputed in the backward pass.

    Each round gives sums of exponentials and their largest exponent, which are gathered by position and added. In the backward pass the
    log-sum-exp of all rounds gives the weights of each. Exponentials are powers of two, which cost half as much, a tenth if most are zero.
    """

    @staticmethod
    def forward(ctx: Any, order: ChunkOrder, q_BLHK: Tensor, k_BLHK: Tensor, v_BLHV: Tensor) -> Tensor:
        (L, K), V, R, C = q_BLHK.shape[1::2], v_BLHV.shape[-1], order.R, order.C
        x_NX, norm_N1 = _pack(q_BLHK, k_BLHK, v_BLHV)
        ctx.spoilt = _not_finite(x_NX, L)
        x_NX[ctx.spoilt] = 0
        out_NV, lse_N, scratch = x_NX.new_empty(len(x_NX), V), x_NX.new_empty(len(x_NX)), Scratch(x_NX)
        for heads in order.groups():
            rows, T = slice(heads.start * L, heads.stop * L), (heads.stop - heads.start) * order.T
            sum_RTCV, top_RTC1, total_RTC1 = (scratch(name, R, T, C, size) for name, size in (("sum", V), ("top", 1), ("total", 1)))
            for r, chunks in order.pieces(heads):
                here, (x_GCX, x_GXS) = _round_slice(r, chunks, heads, order.T), _gather_chunks(x_NX, order.row(r, chunks), C, scratch)
                e_GCS = _scores(order.hidden(r, chunks, scratch), x_GCX[..., :K], x_GXS[:, K : 2 * K])
                e_GCS.sub_(torch.amax(e_GCS, -1, keepdim=True, out=top_RTC1[here])).exp2_()
                torch.sum(e_GCS, -1, keepdim=True, out=total_RTC1[here])
                torch.bmm(e_GCS, x_GXS[:, 2 * K :].mT, out=sum_RTCV[here])
            slot_XR = order.slots(heads)
            top_XR, total_XR = (y.view(-1)[slot_XR] for y in (top_RTC1, total_RTC1))
            top_X1 = top_XR.amax(1, keepdim=True)
            share_XR = top_XR.sub_(top_X1).exp2_()
            total_X1 = total_XR.mul_(share_XR).sum(1, keepdim=True)
            alone_X1 = top_X1 < -HIDE / 2
            share_XR.div_(total_X1).masked_fill_(alone_X1, 0)
            out_NV[rows] = F.embedding_bag(slot_XR, sum_RTCV.view(-1, V), mode="sum", per_sample_weights=share_XR)
            lse_N[rows] = (top_X1 + total_X1.log2()).masked_fill_(alone_X1, HIDE).squeeze(1)  # zero weight in the backward pass
        ctx.order, ctx.alone, ctx.K = order, order.self_attending(lse_N == HIDE), K
        out_NV[ctx.alone] = x_NX[ctx.alone, 2 * K :]
        out_NV[ctx.spoilt] = torch.nan
        ctx.save_for_backward(x_NX, norm_N1, out_NV, lse_N)
        return _by_token(out_NV, order.H, v_BLHV)

    @staticmethod
    @first_derivatives_only
    @no_autocast
    def backward(ctx: Any, do_BLHV: Tensor) -> tuple[Tensor | None, ...]:
        order: ChunkOrder = ctx.order
        x_NX, norm_N1, out_NV, lse_N = ctx.saved_tensors
        L, R, C, K, V = order.L, order.R, order.C, ctx.K, out_NV.shape[1]
        do_NV = do_BLHV.transpose(1, 2).to(lse_N.dtype).reshape(-1, V)
        spoilt = torch.cat([ctx.spoilt, _not_finite(do_NV, L)])
        do_NV = do_NV.index_fill(0, spoilt, 0)
        delta_N = (do_NV * out_NV.index_fill(0, spoilt, 0)).sum(-1)
        (dq_NK, dk_NK, dv_NV), scratch = (x_NX.new_empty(len(x_NX), size) for size in (K, K, V)), Scratch(x_NX)
        for heads in order.groups():
            rows, T = slice(heads.start * L, heads.stop * L), (heads.stop - heads.start) * order.T
            dq_RTCK, dk_RTCK, dv_RTCV = (scratch(name, R, T + 1, C, size) for name, size in (("dq", K), ("dk", K), ("dv", V)))
            for r, chunks in order.pieces(heads):
                row_X = order.row(r, chunks)
                x_GCX, x_GXS = _gather_chunks(x_NX, row_X, C, scratch)
                q_GCK, k_GKS, v_GVS = x_GCX[..., :K], x_GXS[:, K : 2 * K], x_GXS[:, 2 * K :]
                do_GCV, lse_GC1, delta_GC1 = (y.index_select(0, row_X[C:]).view(len(q_GCK), C, -1) for y in (do_NV, lse_N, delta_N))
                p_GCS = _scores(order.hidden(r, chunks, scratch), q_GCK, k_GKS).sub_(order.fill_padding(lse_GC1, chunks, HIDE)).exp2_()
                ds_GCS = torch.baddbmm(delta_GC1, do_GCV, v_GVS, beta=-1, out=scratch("more", *p_GCS.shape)).mul_(p_GCS)
                first, last = chunks.start - heads.start * order.T, chunks.stop - heads.start * order.T
                before, own = (r, slice(first, last)), (r, slice(first + 1, last + 1))
                torch.bmm(ds_GCS, k_GKS.mT, out=dq_RTCK[own])
                torch.bmm(ds_GCS[..., C:].mT, q_GCK, out=dk_RTCK[own])
                torch.bmm(p_GCS[..., C:].mT, do_GCV, out=dv_RTCV[own])
                dk_RTCK[before].baddbmm_(ds_GCS[..., :C].mT, q_GCK)
                dv_RTCV[before].baddbmm_(p_GCS[..., :C].mT, do_GCV)
            slot_XR = order.slots(heads) + torch.arange(1, R + 1, device=x_NX.device) * C
            for d_NK, d_RTCK in ((dq_NK, dq_RTCK), (dk_NK, dk_RTCK), (dv_NV, dv_RTCV)):
                d_NK[rows] = F.embedding_bag(slot_XR, d_RTCK.view(-1, d_NK.shape[1]), mode="sum")
        dv_NV[ctx.alone] += do_NV[ctx.alone]
        k_NK = x_NX[:, K : 2 * K]
        dk_NK.addcmul_((dk_NK * k_NK).sum(-1, keepdim=True), k_NK, value=-1).div_(norm_N1)  # only the direction of a key matters
        return None, *(_by_token(d_NK.index_fill_(0, spoilt, torch.nan), order.H, do_BLHV) for d_NK in (dq_NK, dk_NK, dv_NV))


def _round_slice(r: int, chunks: slice, heads: slice, T: int) -> tuple[int, slice]:
    return r, slice(chunks.start - heads.start * T, chunks.stop - heads.start * T)


def _gather_chunks(x_NX: Tensor, row_X: Tensor, size: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """x_GCX of the chunks and x_GXS of their windows, in one copy."""
    x_XX = torch.index_select(x_NX, 0, row_X, out=scratch("fetched", len(row_X), x_NX.shape[1]))
    return x_XX[size:].unflatten(0, (-1, size)), x_XX.unfold(0, 2 * size, size)


def _scores(hidden_GCS: Tensor, q_GCK: Tensor, k_GKS: Tensor) -> Tensor:
    """Scores as exponents of two, written over `hidden_GCS`."""
    return hidden_GCS.baddbmm_(q_GCK, k_GKS, beta=HIDE, alpha=math.log2(math.e))


def _pack(q_BLHK: Tensor, k_BLHK: Tensor, v_BLHV: Tensor) -> tuple[Tensor, Tensor]:
    """Queries, key directions and values side by side, head by head, x_NX: one gather fetches all. And the norms of the keys."""
    (B, L, H, K), V, precise = q_BLHK.shape, v_BLHV.shape[-1], torch.promote_types(q_BLHK.dtype, torch.float32)
    x_BHLX = torch.empty(B, H, L, 2 * K + V, dtype=precise, device=q_BLHK.device)
    for x_BLHK, part_BHLK in zip((q_BLHK, k_BLHK, v_BLHV), x_BHLX.split((K, K, V), -1), strict=True):
        part_BHLK.copy_(x_BLHK.transpose(1, 2))
    x_NX = x_BHLX.flatten(0, 2)
    norm_N1 = x_NX[:, K : 2 * K].norm(dim=-1, keepdim=True).clamp_min_(TINY)
    x_NX[:, K : 2 * K] /= norm_N1
    return x_NX, norm_N1


def _not_finite(x_NX: Tensor, length: int) -> Tensor:
    """The rows of the heads with a NaN or an infinity. They are computed as zeros and become NaN afterwards: the last chunk of a head and the
    first of the next one share a window, where a hidden pair is multiplied by zero, and zero times NaN is NaN."""
    spoilt_N = ~x_NX.view(-1, length * x_NX.shape[1]).sum(-1).isfinite()  # a sum that overflows is as hopeless
    return spoilt_N.repeat_interleave(length).nonzero()[:, 0]


def _by_token(x_NK: Tensor, heads: int, like_BLHK: Tensor) -> Tensor:
    return x_NK.view(len(like_BLHK), heads, -1, x_NK.shape[1]).transpose(1, 2).to(like_BLHK.dtype)

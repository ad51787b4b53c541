"""LSH attention as the published Reformer computes it, for its checkpoints; `LSHAttention` follows the paper."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import accumulation_dtype
from ..patterns import Pattern, full
from ..patterns.blocks import padded_length
from ._base import Call
from .helpers import no_autocast, real_lengths, share_heads
from .lsh import LSHAttention


class PublishedLSH(LSHAttention):
    """LSH attention as transformers computes it: rounds in one row, chunks in a ring, pairs counted in each round they share a chunk.

    Padding is sorted to the end and fills the last chunk. `weights` are the factors each value really gets.
    """

    def __init__(
        self,
        rounds: int,
        chunk: int,
        buckets: tuple[int, ...],
        beside: tuple[int, int],
        seed: int | None,
        length: int,
        used: tuple[int, ...],
    ):
        super().__init__(rounds=rounds, chunk=chunk, buckets=buckets or 2, seed=seed)
        self.fixed, self.beside, self.length, self.used = buckets, beside, length, used

    def sizes(self, length: int) -> tuple[int, ...]:
        """Number of buckets per hash: two per chunk, rounded down to a power of two; split over two hashes if that is many."""
        if self.fixed:
            return self.fixed
        power = (2 * (length // self.chunk)).bit_length() - 1
        limit = 2 * max(int((self.length // self.chunk) ** 0.5), self.chunk)
        return (2**power,) if 2**power <= limit else (2 ** (power // 2), 2 ** (power - power // 2))

    @no_autocast
    def hash(self, q_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        (L, H, K), sizes = q_BLHK.shape[1:], self.sizes(padded_length(q_BLHK.shape[1], self.used))
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())) if self.seed is None else self.seed)
        precise = accumulation_dtype(q_BLHK)
        rotation_HKRN = torch.randn(H, K, self.rounds, sum(sizes) // 2, generator=generator, dtype=precise).to(q_BLHK)
        rotated_BHRLN = torch.einsum("blhk,hkrn->bhrln", q_BLHK.detach(), rotation_HKRN)
        bucket_BHRL, factor = torch.zeros((), dtype=torch.long, device=q_BLHK.device), 1
        for size, part in zip(sizes, rotated_BHRLN.split([size // 2 for size in sizes], -1), strict=True):
            bucket_BHRL = bucket_BHRL + factor * torch.cat([part, -part], -1).argmax(-1)
            factor *= size
        padding_BL = torch.arange(L, device=q_BLHK.device) >= real_lengths(pattern, L, q_BLHK.device)[:, None]
        return bucket_BHRL.masked_fill(padding_BL[:, None, None], factor)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        B, M, H = len(k_BMHK), call.keys, q_BLHK.shape[2]
        identity_BMHM = torch.eye(M, dtype=k_BMHK.dtype, device=k_BMHK.device)[:, None].expand(B, M, H, M)
        return self._forward(q_BLHK, k_BMHK, identity_BMHM, call).transpose(1, 2)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        pattern, (k_BMHK, v_BMHV) = call.pattern, (share_heads(x, q_BLHK.shape[2]) for x in (k_BMHK, v_BMHV))
        L, R, C, (before, after) = q_BLHK.shape[1], self.rounds, self.chunk, self.beside
        k_BMHK = k_BMHK / (k_BMHK.square().sum(-1, keepdim=True) + 1e-6 * k_BMHK.shape[-1]).sqrt()
        pad = padded_length(L, self.used) - L
        if L + pad <= C:
            i_L = torch.arange(L, device=q_BLHK.device)
            return _attend(q_BLHK.transpose(1, 2), k_BMHK.transpose(1, 2), v_BMHV.transpose(1, 2), i_L, i_L, pattern, L)[0].transpose(1, 2)
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)).transpose(1, 2) for x in (q_BLHK, k_BMHK, v_BMHV))
        bucket_BHRL = F.pad(self.hash(q_BLHK, pattern), (0, pad), value=math.prod(self.sizes(L + pad)))
        at_BHRL = bucket_BHRL.sort(dim=-1, stable=True).indices
        rank_BHRL = torch.empty_like(at_BHRL).scatter_(-1, at_BHRL, torch.arange(L + pad, device=q.device).expand_as(at_BHRL))

        def chunks(x_BHLK: Tensor) -> Tensor:
            """Sorted by hash, rounds concatenated, split into chunks: x_BHTCK."""
            index = at_BHRL.flatten(2).unsqueeze(-1).expand(-1, -1, -1, x_BHLK.shape[-1])
            return x_BHLK.gather(2, index).unflatten(2, (-1, C))

        def window(x_BHTC: Tensor) -> Tensor:
            return torch.cat([x_BHTC.roll(n, 2) for n in range(before, -after - 1, -1)], 3)

        i_BHTC = at_BHRL.flatten(2).unflatten(2, (-1, C))
        out_BHTCV, lse_BHTC = _attend(chunks(q), window(chunks(k)), window(chunks(v)), i_BHTC, window(i_BHTC), pattern, L)
        out_BHRLV, lse_BHRL = out_BHTCV.flatten(2, 3).unflatten(2, (R, -1)), lse_BHTC.flatten(2, 3).unflatten(2, (R, -1))
        out_BHRLV = out_BHRLV.gather(3, rank_BHRL.unsqueeze(-1).expand(*rank_BHRL.shape, v.shape[-1]))
        share_BHRL = lse_BHRL.gather(3, rank_BHRL).softmax(2)
        return (share_BHRL.unsqueeze(-1) * out_BHRLV).sum(2)[:, :, :L].transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, i: Tensor, j: Tensor, pattern: Pattern, length: int) -> tuple[Tensor, Tensor]:
    """Averages and log-sum-exps. A masked key scores -1e9, and a query's own key -1e5, so that it counts only if there is no other."""
    i, j = i.unsqueeze(-1), j.unsqueeze(-2)
    while i.dim() < q.dim():
        i, j = i.unsqueeze(0), j.unsqueeze(0)
    ahead = (1,) * (i.dim() - 2)  # i and j start with the batch and head axes
    b, h = torch.arange(pattern.batch, device=i.device).view(-1, 1, *ahead), torch.arange(pattern.heads, device=i.device).view(-1, *ahead)
    allowed = (j < length) & pattern.fit(length, length).allows(b, h, i.clamp(max=length - 1), j.clamp(max=length - 1))
    scores = (q @ k.transpose(-1, -2)).masked_fill(~allowed, -1e9).masked_fill(i == j, -1e5)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse

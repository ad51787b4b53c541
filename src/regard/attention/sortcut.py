"""SortCut: softly sort the blocks of keys, keep the first few, and let every query attend to those."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..bounds import Count, Heads, NonNegative, Positive, Size
from ..kernels import attend
from ..patterns import Pattern, full, keep
from ._base import Attention, Call, Facts, Paper
from ._recurrent_state import StepState
from .helpers import float32_or_wider, share_heads, softmax_where, uniform_parameter
from .sinkhorn import block_means, filled_slots, gumbel, safe_log, sinkhorn_normalise, sort_blocks, sort_matrix, to_blocks


class SortCutAttention(Attention):
    r"""All queries attend to the same few blocks of keys: those that are sorted first.

    $$o_i = \sum_{u \le n} \sum_t \mathrm{softmax}_{ut}\big(q_i^\top k'_{ut} / \sqrt{K}\big)\, v'_{ut}, \qquad
      k'_{ut} = \sum_v S_{uv} k_{vt}, \; v' \text{ alike}$$

    $k_{vt}$ is key t of block v. S is nearly a permutation of the blocks: row u of its scores is $w_u^\top \bar k_v / (\tau\sqrt{K})$
    with a learned vector $w_u$ for each of the first n ranks, zero for all others, and columns and rows are made to sum to one in turn.

    Cost:    time O(L·n·c·K + M·n·K) for n blocks of c, memory O(L·K + n·M/c): linear in the length.
    Use it:  for encoders of long inputs of which a few parts matter: classification, retrieval.
    Avoid it: where each query needs different keys, or the order of outputs matters.
    Limits:  `full` and `lengths`: what is kept depends on all keys, so there is no causal form. No bias. Heads and
             head size are fixed at construction. In a stream, pass all keys and values at every call, and the queries
             as they come. Where a mixture lacks a key (padding, the end of the last block), the rest of it counts by
             its share of S. `noise=1` adds Gumbel noise in training, drawn from `generator` or PyTorch's global one.
    Args:
        head_dim: size K of keys.
        heads: number of heads, each with its own ranking.
        kept: number n of blocks that queries attend to.
        block: keys per block c.
        iterations: Sinkhorn iterations.
        temperature: τ; the lower, the nearer S is to a permutation.
        noise: scale of the Gumbel noise in training; 0: none.
        generator: random number generator of the noise; None: PyTorch's global one.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Tay, Bahri, Yang, Metzler & Juan 2020, "Sparse Sinkhorn attention", arXiv:2002.11296, section 3.4.
    We differ: the paper's network has one output per rank, which fixes the length; here ranks beyond the first n
             are all alike, which gives the same S as zero scores for them, at any length.
    """

    facts = Facts(
        name="sortcut",
        paper=Paper("Sparse Sinkhorn attention", 2020, "arXiv:2002.11296"),
        formula="softmax(q·S k / √K) S v,  the first n blocks of S k",
        time="L·n·c·K",
        memory="L·K",
        patterns=("full", "lengths"),
        state=StepState,
        positional=True,
        bias=False,
    )

    heads: int

    def __init__(
        self,
        *,
        head_dim: Size,
        heads: Heads = 1,
        kept: Size = 2,
        block: Size = 64,
        iterations: Count = 8,
        temperature: Positive = 0.75,
        noise: NonNegative = 0.0,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.heads, self.head_dim, self.kept, self.block = heads, head_dim, kept, block
        self.iterations, self.temperature, self.noise, self.generator = iterations, temperature, noise, generator
        self.place_HNK = uniform_parameter(heads, kept, head_dim, fan=1)

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(heads=heads, head_dim=head_dim, block=min(64, max(4, length // 16)))

    def sort(self, k_BMHK: Tensor, pattern: Pattern = full) -> Tensor:
        """The first rows of S, sort_BHNV: the share of block v at each kept rank. Ranks beyond the number of blocks have zero rows."""
        (M, _, K), N = k_BMHK.shape[1:], self.kept
        k_BMHK = float32_or_wider(share_heads(k_BMHK, self.heads))
        filled_BUC = filled_slots(pattern, M, self.block, k_BMHK.device)
        real_BU = filled_BUC.any(-1)
        count_B1 = real_BU.sum(-1, keepdim=True)
        scores_BHNV = torch.einsum("hnk,bvhk->bhnv", self.place_HNK.to(k_BMHK.dtype), block_means(k_BMHK, filled_BUC)) * K**-0.5
        scores_BHNV = (scores_BHNV + gumbel(self, scores_BHNV, self.noise, self.generator)) / self.temperature
        # one more row stands for all ranks that are not kept, counted once per block left for them
        scores_BHNV = F.pad(scores_BHNV, (0, 0, 0, 1))
        ranks_BN = (torch.arange(N, device=k_BMHK.device) < count_B1).long()
        count_BN = torch.cat([ranks_BN, (count_B1 - N).clamp(min=0)], 1)[:, None, :, None]
        allowed_BHNV = (count_BN > 0) & real_BU[:, None, None]
        return sinkhorn_normalise(scores_BHNV, allowed_BHNV, count_BN.to(k_BMHK.dtype), self.iterations)[:, :, :N]

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        pattern, (H, K) = call.pattern, q_BLHK.shape[2:]
        k_BMHK = share_heads(k_BMHK, H)
        mixed_BHPM, share_BHP = sort_matrix(self.sort(k_BMHK, pattern).to(q_BLHK.dtype), pattern, k_BMHK.shape[1], self.block)
        k_BHPK = torch.einsum("bhpm,bmhk->bhpk", mixed_BHPM, k_BMHK)
        scores_BHLP = torch.einsum("blhk,bhpk->bhlp", q_BLHK, k_BHPK) * K**-0.5 + safe_log(share_BHP).unsqueeze(-2)
        return softmax_where(scores_BHLP, (share_BHP > 0).unsqueeze(-2)) @ mixed_BHPM

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        (B, L, H), M, pattern = q_BLHK.shape[:3], call.keys, call.pattern
        if isinstance(call.state, StepState):  # queries are independent: the state only counts them
            call.state.move(q_BLHK.new_zeros(B), L)
        k_BMHK, v_BMHV = share_heads(k_BMHK, H), share_heads(v_BMHV, H)
        sort_BHNV, filled_BVC = self.sort(k_BMHK, pattern), filled_slots(pattern, M, self.block, k_BMHK.device)
        share_BHNC, *kept = sort_blocks(sort_BHNV, filled_BVC, to_blocks(k_BMHK, self.block), to_blocks(v_BMHV, self.block))
        k_BPHK, v_BPHV = (x_BHNCK.flatten(2, 3).transpose(1, 2) for x_BHNCK in kept)
        if filled_BVC.shape[1] >= self.kept and bool(filled_BVC.all()):  # all shares are one: dense, and so faster
            return attend(q_BLHK, k_BPHK, v_BPHV)
        share_BH1P = share_BHNC.flatten(2).unsqueeze(2)
        return attend(q_BLHK, k_BPHK, v_BPHV, keep(share_BH1P > 0), bias=safe_log(share_BH1P).to(q_BLHK.dtype))

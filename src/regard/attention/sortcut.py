"""SortCut: sort the blocks of keys softly, keep the first few, and let every query look at those."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadConfig
from ..kernels import Bias, attend
from ..patterns import Pattern, full, keep
from ._base import Attention, Facts, share_heads, softmax_where
from ._scored import fits, uniform
from ._state import Standing, State, standing
from .sinkhorn import balanced, blocks, filled, gumbel, logarithm, means, mixture, moved, sensible


class SortCutAttention(Attention):
    r"""All queries look at the same few blocks of keys: those that sorting puts first.

    $$o_i = \sum_{u \le n} \sum_t \mathrm{softmax}_{ut}\big(q_i^\top k'_{ut} / \sqrt{K}\big)\, v'_{ut}, \qquad
      k'_{ut} = \sum_v S_{uv} k_{vt}, \; v' \text{ alike}$$

    $k_{vt}$ is key t of block v. S is nearly a permutation of the blocks: row u of its scores is $w_u^\top \bar k_v / (\tau\sqrt{K})$
    with a learned vector $w_u$ for each of the first n places, zero for all others, and columns and rows are made to sum to one in turn.

    Cost:    time O(L·n·c·K + M·n·K) for n blocks of c, memory O(L·K + n·M/c): linear in the length.
    Use it:  for encoders of long inputs of which a few parts matter: classification, retrieval.
    Avoid it: where each query needs something else, or the order of outputs matters.
    Limits:  `full` and `lengths`: what is kept depends on all keys, so there is no causal form. No bias. Heads and key size are
             fixed when it is made. Step by step, all keys and values are given at every call, the queries as they come. Where a mixture holds no key (padding, the end of the last block), the rest
             of it counts by its share of S. `noise=1` adds Gumbel noise while training, drawn from `generator`, or from PyTorch's own.
    Paper:   Tay, Bahri, Yang, Metzler & Juan 2020, "Sparse Sinkhorn attention", arXiv:2002.11296, section 3.4.
    We differ: the paper's network has one output for each place, which fixes the length; here places beyond the n that are
             kept are all alike, which leaves S as it would be with zeros for them, at any length.
    """

    facts = Facts(
        name="sortcut",
        year=2020,
        title="Sparse Sinkhorn attention",
        paper="arXiv:2002.11296",
        formula="softmax(q·S k / √K) S v,  the first n blocks of S k",
        time="L·n·c·K",
        memory="L·K",
        patterns=("full", "lengths"),
        causal="none",
        fixed_memory=True,
        positional=True,
        bias=False,
    )

    def __init__(
        self,
        *,
        width: int,
        heads: int = 1,
        kept: int = 2,
        block: int = 64,
        iterations: int = 8,
        temperature: float = 0.75,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        sensible(self, block=block, iterations=iterations, temperature=temperature)
        if kept < 1:
            raise BadConfig(f"SortCutAttention keeps at least one block, got kept={kept}")
        self.heads, self.width, self.kept, self.block = heads, width, kept, block
        self.iterations, self.temperature, self.noise, self.generator = iterations, temperature, noise, generator
        self.place_HNK = uniform(heads, kept, width, fan=1)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width, block=min(64, max(4, length // 16)))

    def sort(self, k_BMHK: Tensor, pattern: Pattern = full) -> Tensor:
        """The first rows of S, sort_BHNV: the share of block v in each place that is kept. Rows of places beyond the blocks are zero."""
        (M, _, K), N = k_BMHK.shape[1:], self.kept
        k_BMHK = share_heads(k_BMHK, self.heads).to(torch.promote_types(k_BMHK.dtype, torch.float32))
        filled_BUC = filled(pattern, M, self.block, k_BMHK.device)
        real_BU = filled_BUC.any(-1)
        count_B1 = real_BU.sum(-1, keepdim=True)
        scores_BHNV = torch.einsum("hnk,bvhk->bhnv", self.place_HNK.to(k_BMHK.dtype), means(k_BMHK, filled_BUC)) * K**-0.5
        scores_BHNV = (scores_BHNV + gumbel(self, scores_BHNV, self.noise, self.generator)) / self.temperature
        # one more row stands for all places that are not kept: as many times as there are blocks left for them
        scores_BHNV = F.pad(scores_BHNV, (0, 0, 0, 1))
        places_BN = (torch.arange(N, device=k_BMHK.device) < count_B1).long()
        counted_BN = torch.cat([places_BN, (count_B1 - N).clamp(min=0)], 1)[:, None, :, None]
        given_BHNV = (counted_BN > 0) & real_BU[:, None, None]
        return balanced(scores_BHNV, given_BHNV, counted_BN.to(k_BMHK.dtype), self.iterations)[:, :, :N]

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self._check(q_BLHK, k_BMHK, None, pattern, bias)
        H, K = q_BLHK.shape[2:]
        k_BMHK = share_heads(k_BMHK, H)
        mixed_BHPM, share_BHP = mixture(self.sort(k_BMHK, pattern).to(q_BLHK.dtype), pattern, k_BMHK.shape[1], self.block)
        scores_BHLP = torch.einsum("blhk,bhpm,bmhk->bhlp", q_BLHK, mixed_BHPM, k_BMHK) * K**-0.5 + logarithm(share_BHP).unsqueeze(-2)
        return softmax_where(scores_BHLP, (share_BHP > 0).unsqueeze(-2)) @ mixed_BHPM

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self._check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        (B, L, H), M = q_BLHK.shape[:3], k_BMHK.shape[1]
        if state is not None:  # queries know nothing of each other: there is only their number to keep
            standing(state, B).move(q_BLHK.new_zeros(B), L)
        k_BMHK, v_BMHV = share_heads(k_BMHK, H), share_heads(v_BMHV, H)
        sort_BHNV, filled_BVC = self.sort(k_BMHK, pattern), filled(pattern, M, self.block, k_BMHK.device)
        share_BHNC, *kept = moved(sort_BHNV, filled_BVC, blocks(k_BMHK, self.block), blocks(v_BMHV, self.block))
        k_BPHK, v_BPHV = (x_BHNCK.flatten(2, 3).transpose(1, 2) for x_BHNCK in kept)
        if filled_BVC.shape[1] >= self.kept and bool(filled_BVC.all()):  # all shares are one: dense, and so faster
            return attend(q_BLHK, k_BPHK, v_BPHV)
        share_BH1P = share_BHNC.flatten(2).unsqueeze(2)
        return attend(q_BLHK, k_BPHK, v_BPHV, keep(share_BH1P > 0), bias=logarithm(share_BH1P).to(q_BLHK.dtype))

    def start(self, batch: int, pattern: Pattern = full) -> Standing:
        return Standing(batch)

    def _check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, self.width)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, kept={self.kept}, block={self.block}"

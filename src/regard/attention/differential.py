"""Differential attention: two looks at the same values, and what the second sees is taken from the first as noise."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import Bias, attend
from ..patterns import Pattern, causal, full
from ._base import Attention, Facts, bias_of, bias_rows, pattern_rows, share_heads, softmax_where
from ._scored import fits
from ._state import Cache, State, remembered


class DifferentialAttention(Attention):
    r"""The difference of two softmax attentions: what both look at alike cancels out.

    $$o_i = \sum_j \Big(\mathrm{softmax}_j\big(q_i^{1\top} k_j^1 / \sqrt{K/2}\big)
      - \lambda\, \mathrm{softmax}_j\big(q_i^{2\top} k_j^2 / \sqrt{K/2}\big)\Big)\, v_j$$

    $$\lambda = e^{\lambda_{q1}\cdot\lambda_{k1}} - e^{\lambda_{q2}\cdot\lambda_{k2}} + \lambda_0, \qquad
      \lambda_0 = 0.8 - 0.6\,e^{-0.3\,d}$$

    q¹ and k¹ are the first half of each head's width, q² and k² the second (one less if it is odd); values stay whole, so a head here
    is two of the heads it replaces. d is the layer, counted from 0.

    Cost:    time O(2·L·M·K) dense, O(2·pairs·K) under a pattern; memory O(L·K).
    Use it:  to find little among much: weights on what does not matter fall to zero, or below.
    Avoid it: where weights must be shares of one: they may be negative, and rows sum to 1 − λ.
    Limits:  heads and key size are fixed when it is made; heads of width 2 at least.
    Paper:   Ye et al. 2024, "Differential transformer", arXiv:2410.05258, section 2.1, eq. 1 to 3.
    We differ: each head has a λ of its own, the paper one a layer. The norm of each head's output, times 1 − λ₀, that follows in the
             paper is no average of values and so a layer, `DifferentialHeads`.
    """

    facts = Facts(
        name="differential",
        year=2024,
        title="Differential transformer",
        paper="arXiv:2410.05258",
        formula="(softmax(q₁·k₁ / √(K/2)) − λ softmax(q₂·k₂ / √(K/2))) v",
        time="2·L·M·K",
        memory="L·K",
        normalised=False,
    )

    def __init__(self, *, heads: int, width: int, depth: int = 0):
        super().__init__()
        if width < 2:
            raise ShapeError(f"DifferentialAttention halves each head's width, so it must be at least 2, got {width}")
        self.heads, self.width = heads, width
        self.begin = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.q1_HK, self.k1_HK, self.q2_HK, self.k2_HK = (nn.Parameter(0.1 * torch.randn(heads, width // 2)) for _ in range(4))

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def share(self) -> Tensor:
        """λ of each head, how much of the second look is taken away; in float32 at least."""
        q1, k1, q2, k2 = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (self.q1_HK, self.k1_HK, self.q2_HK, self.k2_HK))
        return (q1 * k1).sum(-1).exp() - (q2 * k2).sum(-1).exp() + self.begin

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        fits(self, q_BLHK, self.heads, self.width)
        (L, H, K), M, device = q_BLHK.shape[1:], k_BMHK.shape[1], q_BLHK.device
        mask_BHLM, added = pattern.mask(L, M, device), bias_of(bias, L, M, device)
        halves = zip(*(x.split((K - K // 2, K // 2), -1) for x in (q_BLHK, share_heads(k_BMHK, H))), strict=True)
        first, second = (softmax_where(torch.einsum("blhk,bmhk->bhlm", q, k) * q.shape[-1] ** -0.5 + added, mask_BHLM) for q, k in halves)
        return first - self.share().to(q_BLHK.dtype)[:, None, None] * second

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, self.width)
        if state is not None:
            k_BMHK, v_BMHV, pattern, bias = remembered(state, q_BLHK, k_BMHK, v_BMHV, pattern, bias)
        # Zeros in half of the query leave the other half of the keys unread. Cutting both in half would say the same, but keys
        # narrower than the values keep the fused kernel out.
        cut = self.width - self.width // 2
        first_K = torch.arange(self.width, device=q_BLHK.device) < cut
        one = attend(q_BLHK * first_K, k_BMHK, v_BMHV, pattern, scale=cut**-0.5, bias=bias)
        two = attend(q_BLHK * ~first_K, k_BMHK, v_BMHV, pattern, scale=(self.width - cut) ** -0.5, bias=bias)
        return one - self.share().to(one.dtype)[:, None] * two

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        return Cache(batch, pattern.reach())

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        L, M = q_BLHK.shape[1], k_BMHK.shape[1]
        return self.weights(q_BLHK[:, rows], k_BMHK, pattern_rows(pattern, rows, L, M), bias_rows(bias, rows, L, M))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, begin={self.begin:.3g}"

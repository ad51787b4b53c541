"""Differential attention: the difference of two softmax attentions over the same values, which cancels common noise."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor, nn

from ..bounds import MOST, Count, Heads
from ..kernels import attend
from ._base import Attention, Call, Facts, Paper
from .helpers import float32_or_wider, share_heads, softmax_where

Halved = Annotated[int, Meta(ge=2, le=MOST, description="each head is halved")]


class DifferentialAttention(Attention):
    r"""The difference of two softmax attentions: what both attend to alike cancels out.

    $$o_i = \sum_j \Big(\mathrm{softmax}_j\big(q_i^{1\top} k_j^1 / \sqrt{K/2}\big)
      - \lambda\, \mathrm{softmax}_j\big(q_i^{2\top} k_j^2 / \sqrt{K/2}\big)\Big)\, v_j$$

    $$\lambda = e^{\lambda_{q1}\cdot\lambda_{k1}} - e^{\lambda_{q2}\cdot\lambda_{k2}} + \lambda_0, \qquad
      \lambda_0 = 0.8 - 0.6\,e^{-0.3\,d}$$

    q¹ and k¹ are the first half of each head's features, q² and k² the second (one fewer if K is odd); values are not split,
    so one head here replaces two. d is the index of the layer, from 0.

    Cost:    time O(2·L·M·K) dense, O(2·pairs·K) under a pattern; memory O(L·K).
    Use it:  to find a few relevant keys among many: weights on irrelevant ones fall to zero or below.
    Avoid it: where weights must form a distribution: they may be negative, and rows sum to 1 − λ.
    Limits:  heads and head size are fixed at construction; the head size is at least 2.
    Args:
        heads: number of heads, each with its own λ.
        head_dim: size K of queries and keys, both maps together; at least 2.
        depth: index d of the layer, from 0, which sets λ₀.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Ye et al. 2024, "Differential transformer", arXiv:2410.05258, section 2.1, eq. 1–3.
    We differ: λ is per head; in the paper, per layer. The norm of each head's output times 1 − λ₀ that follows in
             the paper is not an average of values, so it is a layer, `DifferentialHeads`.
    """

    facts = Facts(
        name="differential",
        paper=Paper("Differential transformer", 2024, "arXiv:2410.05258"),
        formula="(softmax(q₁·k₁ / √(K/2)) − λ softmax(q₂·k₂ / √(K/2))) v",
        time="2·L·M·K",
        memory="L·K",
        normalised=False,
    )

    def __init__(self, *, heads: Heads, head_dim: Halved, depth: Count = 0):
        super().__init__()
        self.heads, self.head_dim, self.depth = heads, head_dim, depth
        self.initial_share = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.q1_HK, self.k1_HK, self.q2_HK, self.k2_HK = (nn.Parameter(0.1 * torch.randn(heads, head_dim // 2)) for _ in range(4))

    def share(self) -> Tensor:
        """λ per head, the factor of the second attention, in float32 or wider."""
        q1, k1, q2, k2 = (float32_or_wider(x) for x in (self.q1_HK, self.k1_HK, self.q2_HK, self.k2_HK))
        return (q1 * k1).sum(-1).exp() - (q2 * k2).sum(-1).exp() + self.initial_share

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        H, K = q_BLHK.shape[2:]
        mask_BHLM, bias = call.mask(), call.scores_bias()
        halves = zip(*(x.split((K - K // 2, K // 2), -1) for x in (q_BLHK, share_heads(k_BMHK, H))), strict=True)
        first, second = (softmax_where(torch.einsum("blhk,bmhk->bhlm", q, k) * q.shape[-1] ** -0.5 + bias, mask_BHLM) for q, k in halves)
        return first - self.share().to(q_BLHK.dtype)[:, None, None] * second

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        # Zeroing half of the query leaves that half of the keys unread. Splitting both would compute the same, but the fused
        # kernel needs keys as wide as the values.
        K = q_BLHK.shape[-1]
        cut = K - K // 2
        first_K = torch.arange(K, device=q_BLHK.device) < cut
        one = attend(q_BLHK * first_K, k_BMHK, v_BMHV, call.pattern, scale=cut**-0.5, bias=call.bias)
        two = attend(q_BLHK * ~first_K, k_BMHK, v_BMHV, call.pattern, scale=(K - cut) ** -0.5, bias=call.bias)
        return one - self.share().to(one.dtype)[:, None] * two

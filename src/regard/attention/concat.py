"""Luong's concat score: a hidden layer over query and key side by side."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ._base import Facts, share_heads
from ._scored import Scored, uniform
from .additive import additive_scores


class ConcatAttention(Scored):
    r"""A network with one hidden layer over query and key side by side: Bahdanau's score, with projections of its own.

    $$o_i = \sum_j \mathrm{softmax}_j\big(u^\top \tanh(W\,[q_i; k_j]) + b_{ij}\big)\, v_j, \qquad W\,[q; k] = W_q q + W_k k$$

    Cost:    time O((L + M)·K·A + L·M·A) for a hidden layer of A; memory O((L + M)·A) beside chunks of rows.
    Use it:  where queries and keys come as they are, with no projection around the attention.
    Avoid it: inside projections: AdditiveAttention is then the same with fewer parameters.
    Limits:  heads and key size are fixed when it is made. Keys are projected at each call, again for those in a cache.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (concat).
    We differ: nothing; W is split in two so that each query and each key goes through it once, not each pair.
    """

    facts = Facts(
        name="concat",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        formula="softmax(u·tanh(W[q; k])) v",
        time="L·M·K",
        memory="(L + M)·K",
    )

    def __init__(self, *, width: int, heads: int = 1, hidden: int | None = None):
        super().__init__()
        self.heads, self.width = heads, width
        hidden = width if hidden is None else hidden
        self.w_q_HKA = uniform(heads, width, hidden, fan=2 * width)
        self.w_k_HKA = uniform(heads, width, hidden, fan=2 * width)
        self.u_HA = uniform(heads, hidden, fan=hidden)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        k_BMHK = share_heads(k_BMHK, q_BLHK.shape[2])
        return torch.einsum("blhk,hka->blha", q_BLHK, self.w_q_HKA), torch.einsum("bmhk,hka->bmha", k_BMHK, self.w_k_HKA)

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, place_BM: Tensor) -> Tensor:
        return additive_scores(q_BLHK, k_BMHK, self.u_HA)

    def per_pair(self, q_BLHK: Tensor) -> int:
        return q_BLHK.shape[-1]

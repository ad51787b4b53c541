"""Bahdanau's score: query and key added inside a tanh, the first attention of translation."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ._base import Facts, share_heads
from ._scored import Scored, uniform


class AdditiveAttention(Scored):
    r"""A network with one hidden layer judges how well query and key match.

    $$o_i = \sum_j \mathrm{softmax}_j\big(u^\top \tanh(q_i + k_j) + b_{ij}\big)\, v_j$$

    Cost:    time O(L·M·K) with a tanh for each of the L·M·K numbers, so no matrix product serves; memory O(M·K) beside
             chunks of rows: under teacher forcing the hidden layer of all pairs would be L·M·K numbers.
    Use it:  in recurrent decoders of one query a step, and where scores should stay within ±Σ|u|.
    Avoid it: for long sequences of queries.
    Limits:  heads and key size are fixed when it is made.
    Paper:   Bahdanau, Cho & Bengio 2014, "Neural machine translation by jointly learning to align and translate",
             arXiv:1409.0473, section 3.1 and appendix A.1.2.
    We differ: q is the paper's W_a s and k its U_a h: the projections belong to the layer around this (ConcatAttention owns
             its own), so that keys are projected once for all steps. u begins at random; in the paper it begins at zero.
    """

    facts = Facts(
        name="additive",
        year=2014,
        title="Neural machine translation by jointly learning to align and translate",
        paper="arXiv:1409.0473",
        formula="softmax(u·tanh(q + k)) v",
        time="L·M·K",
        memory="M·K",
    )

    def __init__(self, *, width: int, heads: int = 1):
        super().__init__()
        self.heads, self.width = heads, width
        self.u_HK = uniform(heads, width, fan=width)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, place_BM: Tensor) -> Tensor:
        return additive_scores(q_BLHK, share_heads(k_BMHK, q_BLHK.shape[2]), self.u_HK)

    def per_pair(self, q_BLHK: Tensor) -> int:
        return q_BLHK.shape[-1]


def additive_scores(q_BLHK: Tensor, k_BMHK: Tensor, u_HK: Tensor) -> Tensor:
    """u·tanh(q + k) of every pair: forms L × M × K."""
    hidden_BHLMK = torch.tanh(q_BLHK.transpose(1, 2).unsqueeze(3) + k_BMHK.transpose(1, 2).unsqueeze(2))
    return torch.einsum("bhlmk,hk->bhlm", hidden_BHLMK, u_HK)

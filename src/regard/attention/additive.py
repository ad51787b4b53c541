"""Additive attention (Bahdanau): query and key are added inside a tanh; the first attention for translation."""

from __future__ import annotations

import torch
from torch import Tensor

from ..bounds import Heads, Size
from ._base import Call, Facts, Paper
from ._score import ScoreAttention
from .helpers import share_heads, uniform_parameter


class AdditiveAttention(ScoreAttention):
    r"""A network with one hidden layer scores how well query and key match.

    $$o_i = \sum_j \mathrm{softmax}_j\big(u^\top \tanh(q_i + k_j) + b_{ij}\big)\, v_j$$

    Cost:    time O(L·M·K), with a tanh for each of the L·M·K numbers instead of a matmul; memory O(M·K) plus chunks
             of rows: with teacher forcing, the hidden layer of all pairs would take L·M·K numbers.
    Use it:  in recurrent decoders with one query per step, and where scores should stay within ±Σ|u|.
    Avoid it: for long sequences of queries.
    Limits:  heads and head size are fixed at construction.
    Args:
        head_dim: size K of queries and keys, which is that of the hidden layer.
        heads: number of heads, each with its own u.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Bahdanau, Cho & Bengio 2014, "Neural machine translation by jointly learning to align and translate",
             arXiv:1409.0473, section 3.1 and appendix A.1.2.
    We differ: q is the paper's W_a s and k its U_a h: the projections belong to the surrounding layer, so that keys are
             projected once for all steps (ConcatAttention has its own). u is initialised at random, in the paper to zero.
    """

    facts = Facts(
        name="additive",
        paper=Paper("Neural machine translation by jointly learning to align and translate", 2014, "arXiv:1409.0473"),
        formula="softmax(u·tanh(q + k)) v",
        time="L·M·K",
        memory="M·K",
    )

    pairwise = True

    def __init__(self, *, head_dim: Size, heads: Heads = 1):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.u_HK = uniform_parameter(heads, head_dim, fan=head_dim)

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return additive_scores(q_BLHK, share_heads(k_BMHK, q_BLHK.shape[2]), self.u_HK)

    def numbers_per_pair(self, q_BLHK: Tensor) -> int:
        return q_BLHK.shape[-1]


def additive_scores(q_BLHK: Tensor, k_BMHK: Tensor, u_HK: Tensor) -> Tensor:
    """u·tanh(q + k) of every pair; materialises L × M × K."""
    hidden_BHLMK = torch.tanh(q_BLHK.transpose(1, 2).unsqueeze(3) + k_BMHK.transpose(1, 2).unsqueeze(2))
    return torch.einsum("bhlmk,hk->bhlm", hidden_BHLMK, u_HK)

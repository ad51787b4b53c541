"""Luong's concat score: a hidden layer over the concatenated query and key."""

from __future__ import annotations

import torch
from torch import Tensor

from ..bounds import Heads, Size
from ._base import Call, Facts, Paper
from ._score import ScoreAttention
from .additive import additive_scores
from .helpers import share_heads, uniform_parameter


class ConcatAttention(ScoreAttention):
    r"""A network with one hidden layer over the concatenated query and key: Bahdanau's score with its own projections.

    $$o_i = \sum_j \mathrm{softmax}_j\big(u^\top \tanh(W\,[q_i; k_j]) + b_{ij}\big)\, v_j, \qquad W\,[q; k] = W_q q + W_k k$$

    Cost:    time O((L + M)·K·A + L·M·A) for a hidden layer of A; memory O((L + M)·A) plus chunks of rows.
    Use it:  where no surrounding layer projects queries and keys.
    Avoid it: after projections of q and k: AdditiveAttention is then equivalent, with fewer parameters.
    Limits:  heads and head size are fixed at construction. Keys are projected at each call, cached ones again.
    Args:
        head_dim: size K of queries and keys.
        heads: number of heads, each with its own W and u.
        hidden: units of the hidden layer; `head_dim` if not given.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (concat).
    We differ: nothing; W is split in two, so that each query and each key is projected once, not once per pair.
    """

    facts = Facts(
        name="concat",
        paper=Paper("Effective approaches to attention-based neural machine translation", 2015, "arXiv:1508.04025"),
        formula="softmax(u·tanh(W[q; k])) v",
        time="L·M·K",
        memory="(L + M)·K",
    )

    pairwise = True

    def __init__(self, *, head_dim: Size, heads: Heads = 1, hidden: Size | None = None):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.hidden = hidden = head_dim if hidden is None else hidden
        self.w_q_HKA = uniform_parameter(heads, head_dim, hidden, fan=2 * head_dim)
        self.w_k_HKA = uniform_parameter(heads, head_dim, hidden, fan=2 * head_dim)
        self.u_HA = uniform_parameter(heads, hidden, fan=hidden)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        k_BMHK = share_heads(k_BMHK, q_BLHK.shape[2])
        return torch.einsum("blhk,hka->blha", q_BLHK, self.w_q_HKA), torch.einsum("bmhk,hka->bmha", k_BMHK, self.w_k_HKA)

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return additive_scores(q_BLHK, k_BMHK, self.u_HA)

    def numbers_per_pair(self, q_BLHK: Tensor) -> int:
        return q_BLHK.shape[-1]

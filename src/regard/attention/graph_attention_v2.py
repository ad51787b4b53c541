"""Graph attention in which each query ranks its neighbours anew."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from ..bounds import Heads, NonNegative, Probability, Size
from ._base import Call, Facts, Paper
from ._score import ScoreAttention
from .helpers import share_heads, uniform_parameter


class GraphAttentionV2(ScoreAttention):
    r"""GAT's score with the LeakyReLU before the vector a: what a key is worth depends on who asks ("dynamic" attention).

    $$o_i = \sum_{j \in N(i)} \mathrm{softmax}_j\big(a^\top \mathrm{LeakyReLU}(q_i + k_j) + b_{ij}\big)\, v_j$$

    Cost:    time O(pairs·K), memory O(pairs·K) under `edges`, otherwise O(M·K) and chunks of rows.
    Use it:  on graphs, under `edges`, where which neighbour matters depends on the node that asks.
    Avoid it: on graphs of many millions of edges where GAT is as good: K numbers are formed per edge, not one.
    Limits:  heads and head size are fixed at construction.
    Args:
        head_dim: size K of queries and keys.
        heads: number of heads, each with its own a.
        slope: slope of the LeakyReLU below zero.
        dropout: probability of dropping an attention weight in training.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Brody, Alon & Yahav 2021, "How attentive are graph attention networks?", arXiv:2105.14491, eq. 7.
    We differ: the projections W_q h and W_k h belong to the layer (`layers.GraphHeads`). Edge features enter as a bias b, one number per head after
             a, not as K numbers inside the LeakyReLU. An edge that is listed twice counts once.
    """

    facts = Facts(
        name="graph_attention_v2",
        paper=Paper("How attentive are graph attention networks?", 2021, "arXiv:2105.14491"),
        formula="softmax(a·LeakyReLU(q + k)) v",
        time="L·M·K",
        memory="M·K",
    )
    pairwise = True

    def __init__(self, *, head_dim: Size, heads: Heads = 1, slope: NonNegative = 0.2, dropout: Probability = 0.0):
        super().__init__()
        self.heads, self.head_dim, self.slope, self.dropout = heads, head_dim, slope, dropout
        self.a_HK = uniform_parameter(heads, head_dim, fan=head_dim)

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        q_BHL1K, k_BH1MK = q_BLHK.transpose(1, 2).unsqueeze(3), share_heads(k_BMHK, q_BLHK.shape[2]).transpose(1, 2).unsqueeze(2)
        return torch.einsum("bhlmk,hk->bhlm", leaky_relu(q_BHL1K + k_BH1MK, self.slope), self.a_HK)

    def numbers_per_pair(self, q_BLHK: Tensor) -> int:
        return q_BLHK.shape[-1]

    def reference(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor) -> Tensor:
        """Compute the formula one pair at a time.

        Args:
            q_BLHK: queries.
            k_BMHK: keys.
            v_BMHV: values.
        """
        out_BLHV = v_BMHV.new_zeros(*q_BLHK.shape[:3], v_BMHV.shape[-1])
        for b, i, h in ((b, i, h) for b in range(len(q_BLHK)) for i in range(q_BLHK.shape[1]) for h in range(q_BLHK.shape[2])):
            hidden_MK = torch.stack([q_BLHK[b, i, h] + k_K for k_K in k_BMHK[b, :, h]])
            e_M = torch.where(hidden_MK > 0, hidden_MK, self.slope * hidden_MK) @ self.a_HK[h]
            out_BLHV[b, i, h] = e_M.softmax(0) @ v_BMHV[b, :, h]
        return out_BLHV

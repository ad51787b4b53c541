"""Graph attention: a number from the query plus a number from the key, along the edges of a graph."""

from __future__ import annotations

from torch import Tensor, cat, stack, where
from torch.nn.functional import leaky_relu

from ..bounds import Heads, NonNegative, Probability, Size
from ._base import Call, Facts, Paper
from ._score import ScoreAttention
from .helpers import share_heads, uniform_parameter


class GraphAttention(ScoreAttention):
    r"""The score of two nodes is the sum of what each of them says, through a LeakyReLU; each node averages its neighbours.

    $$o_i = \sum_{j \in N(i)} \mathrm{softmax}_j\big(\mathrm{LeakyReLU}(a_q^\top q_i + a_k^\top k_j + b_{ij})\big)\, v_j$$

    Since LeakyReLU is increasing, all queries rank the same keys in the same order ("static" attention): `GraphAttentionV2` ranks them anew.

    Cost:    time O((L + M)·K + pairs), memory O(pairs): a number per node before any pair is looked at. Under `edges`, pairs are edges.
    Use it:  on graphs, under `edges`, where the importance of a neighbour is its own property.
    Avoid it: where a query must look a particular key up.
    Limits:  heads and head size are fixed at construction.
    Args:
        head_dim: size K of queries and keys.
        heads: number of heads, each with its own a.
        slope: slope of the LeakyReLU below zero.
        dropout: probability of dropping an attention weight in training.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Veličković et al. 2017, "Graph attention networks", arXiv:1710.10903, eq. 1-4. Static: Brody et al. 2021, arXiv:2105.14491.
    We differ: the paper's q, k and v are all W h, which belongs to the layer (`layers.GraphHeads`); a bias, such as one from edge features, is
             added inside the LeakyReLU, as in torch_geometric. An edge that is listed twice counts once.
    """

    facts = Facts(
        name="graph_attention",
        paper=Paper("Graph attention networks", 2017, "arXiv:1710.10903"),
        formula="softmax(LeakyReLU(a·q + a′·k)) v",
        time="(L + M)·K + L·M",
        memory="M·K",
    )
    pairwise = True

    def __init__(self, *, head_dim: Size, heads: Heads = 1, slope: NonNegative = 0.2, dropout: Probability = 0.0):
        super().__init__()
        self.heads, self.head_dim, self.slope, self.dropout = heads, head_dim, slope, dropout
        self.a_q_HK = uniform_parameter(heads, head_dim, fan=head_dim)
        self.a_k_HK = uniform_parameter(heads, head_dim, fan=head_dim)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        k_BMHK = share_heads(k_BMHK, q_BLHK.shape[2])
        return (q_BLHK * self.a_q_HK).sum(-1, keepdim=True), (k_BMHK * self.a_k_HK).sum(-1, keepdim=True)

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return q_BLHK.transpose(1, 2) + k_BMHK.permute(0, 2, 3, 1)

    def nonlinearity(self, scores_BHLM: Tensor) -> Tensor:
        return leaky_relu(scores_BHLM, self.slope)

    def reference(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor) -> Tensor:
        """Compute the formula with a, the concatenation of both, as published.

        Args:
            q_BLHK: queries.
            k_BMHK: keys.
            v_BMHV: values.
        """
        out_BLHV = v_BMHV.new_zeros(*q_BLHK.shape[:3], v_BMHV.shape[-1])
        for b, i, h in ((b, i, h) for b in range(len(q_BLHK)) for i in range(q_BLHK.shape[1]) for h in range(q_BLHK.shape[2])):
            a_2K = cat([self.a_q_HK[h], self.a_k_HK[h]])
            e_M = stack([a_2K @ cat([q_BLHK[b, i, h], k_K]) for k_K in k_BMHK[b, :, h]])
            out_BLHV[b, i, h] = where(e_M > 0, e_M, self.slope * e_M).softmax(0) @ v_BMHV[b, :, h]
        return out_BLHV

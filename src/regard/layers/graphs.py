r"""Layers of graph networks: attention along edges with shared projections, and a linear map of sparse features.

$$h_i' = \big\Vert_{h=1}^{H} \sum_{j \in N(i)} \alpha^h_{ij} W^h x_j + b \qquad y_n = \sum_{f} x_{nf} W_f$$

Paper: Veličković et al. 2017, "Graph attention networks", arXiv:1710.10903, section 2.1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention
from ..kernels import EdgeBias, dropout
from ..patterns import Pattern


class SparseFeatures(NamedTuple):
    """Features of nodes, most of them zero, such as the words of documents: those of node n are entries first[n] … first[n + 1]."""

    index_T: Tensor  # number of each feature
    value_T: Tensor  # its value
    first: Tensor  # where the features of each node begin, and the end

    @property
    def rows(self) -> int:
        """Number of nodes."""
        return len(self.first) - 1


class FeatureSum(nn.Module):
    """A linear map without bias of sparse features: the weights of a node's features, times their values, summed.

    Dropout zeroes features that are there; of zeros there is nothing to drop. So the result is that of dropout on the dense matrix.

    Args:
        inputs: number of features.
        width: size of the result.
        dropout: probability of dropping a feature in training.

    Shape: features of N nodes → y_ND.
    """

    def __init__(self, inputs: int, width: int, dropout: float = 0.0):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(inputs, width)))
        self.dropout = dropout

    def forward(self, x: SparseFeatures) -> Tensor:
        value_T = dropout(x.value_T, self.dropout) if self.training and self.dropout else x.value_T
        if not len(value_T):
            return self.weight.new_zeros(x.rows, self.weight.shape[1])
        return F.embedding_bag(
            x.index_T, self.weight, x.first, mode="sum", per_sample_weights=value_T.to(self.weight.dtype), include_last_offset=True
        )


class GraphHeads(nn.Module):
    """Heads that attend on a graph: keys and values are one projection of the nodes, queries the same one or another; heads side by side or averaged.

    Args:
        project: map of the nodes to keys and values, x → (N, H·K).
        attention: mechanism, sized for the heads.
        heads: number of heads H.
        head_dim: size K of each.
        query: map of the nodes to queries; None: `project`.
        concat: heads side by side; False: averaged, as in an output layer.
        edge_width: numbers per edge, which become a bias of the scores per head; 0: none.

    Shape: nodes x → out (N, H·K), or (N, K) averaged.
    """

    def __init__(
        self,
        project: nn.Module,
        attention: Attention,
        heads: int,
        head_dim: int,
        *,
        query: nn.Module | None = None,
        concat: bool = True,
        edge_width: int = 0,
    ):
        super().__init__()
        self.project, self.query, self.attention = project, query, attention
        self.heads, self.head_dim, self.concat = heads, head_dim, concat
        self.edge = nn.Linear(edge_width, heads, bias=False) if edge_width else None
        self.bias = nn.Parameter(torch.zeros(heads * head_dim if concat else head_dim))

    def forward(
        self, x: Tensor | SparseFeatures, pattern: Pattern, pairs_2E: Tensor | None = None, edge_EF: Tensor | None = None
    ) -> Tensor:
        """Attend along the edges.

        Args:
            x: nodes, as `project` takes them.
            pattern: edges, as a pattern.
            pairs_2E: query and key of each edge that has features.
            edge_EF: their features.
        """
        k_1NHK = self.project(x).unflatten(-1, (self.heads, self.head_dim)).unsqueeze(0)
        q_1NHK = k_1NHK if self.query is None else self.query(x).unflatten(-1, (self.heads, self.head_dim)).unsqueeze(0)
        bias = None
        if self.edge is not None and pairs_2E is not None and edge_EF is not None:
            bias = EdgeBias(pairs_2E, self.edge(edge_EF))
        out_NHK = self.attention(q_1NHK, k_1NHK, k_1NHK, pattern, bias).squeeze(0)
        return (out_NHK.flatten(1) if self.concat else out_NHK.mean(1)) + self.bias

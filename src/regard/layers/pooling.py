r"""A sequence of states becomes one vector: its mean, its maximum, its last states, or averages that learned queries choose.

$$\bar h_i = \tanh(W h_i + b) \qquad α_{ri} = \mathrm{softmax}_i(u_r^\top \bar h_i) \qquad v_r = \sum_i α_{ri}\, h_i$$

One query u is the inner attention of Yang 2016 and Conneau 2017; several make the matrix of Lin 2017, which asks their weights A to differ:

$$\lVert A A^\top - I \rVert_F^2 = \sum_{rs} \Big(\sum_i α_{ri} α_{si} - δ_{rs}\Big)^2$$

The first n_B states of each row are real. A row without any becomes zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attention import DotAttention
from ..patterns import lengths
from .packing import Packing


def real_states(x_BLD: Tensor, n_B: Tensor) -> Tensor:
    """real_BL1: which states are not padding."""
    return (torch.arange(x_BLD.shape[1], device=x_BLD.device) < n_B[:, None])[..., None]


def mean_pool(x_BLD: Tensor, n_B: Tensor) -> Tensor:
    """The mean of each row's states, y_BD."""
    return x_BLD.masked_fill(~real_states(x_BLD, n_B), 0).sum(1) / n_B[:, None].clamp(min=1)


def max_pool(x_BLD: Tensor, n_B: Tensor) -> Tensor:
    """The maximum of each feature over a row's states, y_BD."""
    top_BD = x_BLD.masked_fill(~real_states(x_BLD, n_B), -torch.inf).amax(1)
    return top_BD.masked_fill((n_B == 0)[:, None], 0)


def last_states(h_BLD: Tensor, n_B: Tensor) -> Tensor:
    """Of states in both directions, [h→ ; h←]: where each has read the whole row, h→ at its last token and h← at its first."""
    there_BLW, back_BLW = h_BLD.chunk(2, -1)
    last_BW = there_BLW[torch.arange(len(n_B), device=n_B.device), (n_B - 1).clamp(min=0)]
    return torch.cat([last_BW, back_BLW[:, 0]], -1).masked_fill((n_B == 0)[:, None], 0)


class AttentionPooling(nn.Module):
    """Learned queries u over tanh(W h + b): v_BRD, an average of the states per query. Values are the states themselves.

    width    of the states
    hidden   size of the keys and of the queries
    queries  number of averages R; with 1, v_B1D
    """

    def __init__(self, width: int, hidden: int, queries: int = 1):
        super().__init__()
        self.key = nn.Linear(width, hidden)
        self.query_RK = nn.Parameter(torch.empty(queries, hidden).uniform_(-(hidden**-0.5), hidden**-0.5))
        self.attention = DotAttention()

    def forward(self, h_BMD: Tensor, n_B: Tensor) -> Tensor:
        q_BRHK, k_BMHK = self._queries_and_keys(h_BMD, n_B)
        return self.attention(q_BRHK, k_BMHK, h_BMD.unsqueeze(2), lengths(n_B)).squeeze(2)

    def weights(self, h_BMD: Tensor, n_B: Tensor) -> Tensor:
        """weights_BRM of each query."""
        return self.attention.weights(*self._queries_and_keys(h_BMD, n_B), lengths(n_B)).squeeze(1)

    def _queries_and_keys(self, h_BMD: Tensor, n_B: Tensor) -> tuple[Tensor, Tensor]:
        real = Packing.of(n_B, h_BMD.shape[1])  # sentences of documents are mostly padding
        k_BMHK = real.pad(torch.tanh(self.key(real.pack(h_BMD)))).unsqueeze(2)
        return self.query_RK[None, :, None].to(k_BMHK.dtype).expand(len(h_BMD), -1, -1, -1), k_BMHK


def redundancy(weights_BRM: Tensor) -> Tensor:
    """‖A Aᵀ − I‖² of each row, (B,): zero if every query attends to one token that no other attends to."""
    return (weights_BRM @ weights_BRM.mT - torch.eye(weights_BRM.shape[1], device=weights_BRM.device)).square().sum((1, 2))

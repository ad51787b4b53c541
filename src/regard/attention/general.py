"""Luong's general score: a dot product through a learned matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bounds import Heads, Size
from ._base import Facts, Paper
from ._score import DotProductAttention


class GeneralAttention(DotProductAttention):
    r"""A learned matrix relates the features of the query to those of the key.

    $$o_i = \sum_j \mathrm{softmax}_j\big(q_i^\top W k_j + b_{ij}\big)\, v_j$$

    Cost:    time O(L·K² + L·M·K), memory O(L·K): the tiled softmax kernel. W is applied to the queries, so keys are
             unchanged: a cache holds them once, and several query heads may share them.
    Use it:  for queries and keys from different networks, such as decoder and encoder states.
    Avoid it: after projections of q and k: those already form a matrix of rank K, and W adds nothing.
    Limits:  heads and head size are fixed at construction.
    Args:
        head_dim: size K of queries and keys.
        heads: number of heads, each with its own W.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (general).
    We differ: W is initialised with standard deviation 1/K, so that scores of unit-variance inputs have standard
             deviation one; the paper draws it from ±0.1.
    """

    facts = Facts(
        name="general",
        paper=Paper("Effective approaches to attention-based neural machine translation", 2015, "arXiv:1508.04025"),
        formula="softmax(q·Wk) v",
        time="L·M·K",
        memory="L·K",
    )

    def __init__(self, *, head_dim: Size, heads: Heads = 1):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.w_HKK = nn.Parameter(torch.randn(heads, head_dim, head_dim) / head_dim)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return torch.einsum("blha,hak->blhk", q_BLHK, self.w_HKK), k_BMHK

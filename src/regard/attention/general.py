"""Luong's general score: a dot product through a learnt matrix."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ._base import Facts
from ._scored import Product


class GeneralAttention(Product):
    r"""A matrix learns which part of the query answers to which part of the key.

    $$o_i = \sum_j \mathrm{softmax}_j\big(q_i^\top W k_j + b_{ij}\big)\, v_j$$

    Cost:    time O(L·K² + L·M·K), memory O(L·K), in the kernel of softmax attention. W is applied to the queries, so keys
             stay as they are: a cache holds them once, and several query heads may share them.
    Use it:  for queries and keys from different networks, such as a decoder's and an encoder's states.
    Avoid it: after projections of q and k; those already make a matrix of rank K, and W adds nothing.
    Limits:  heads and key size are fixed when it is made.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (general).
    We differ: W begins at random with standard deviation 1/K, so that scores of unit inputs have deviation one; the paper
             draws it from ±0.1.
    """

    facts = Facts(
        name="general",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        formula="softmax(q·Wk) v",
        time="L·M·K",
        memory="L·K",
    )

    def __init__(self, *, width: int, heads: int = 1):
        super().__init__()
        self.heads, self.width = heads, width
        self.w_HKK = nn.Parameter(torch.randn(heads, width, width) / width)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return torch.einsum("blha,hak->blhk", q_BLHK, self.w_HKK), k_BMHK

"""Content addressing: the cosine of query and key, sharpened by a learnt strength."""

from __future__ import annotations

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._base import Facts
from ._scored import Product


class CosineAttention(Product):
    r"""Only the direction of query and key counts; a strength β says how sharply the nearest key is preferred.

    $$o_i = \sum_j \mathrm{softmax}_j\big(\beta\,\cos(q_i, k_j) + b_{ij}\big)\, v_j$$

    Cost:    time O(L·M·K), memory O(L·K), in the kernel of softmax attention.
    Use it:  as a memory looked up by content, or where the length of keys must not decide: scores stay within ±β.
    Avoid it: where a key should be able to say "look at me" to every query.
    Limits:  the number of heads is fixed when it is made. A query or key that is exactly zero is equally far from all.
    Paper:   Graves, Wayne & Danihelka 2014, "Neural Turing machines", arXiv:1410.5401, section 3.3.1.
    We differ: β is learnt as its logarithm, one a head, beginning at 10; there the controller gives another β_t at each
             step. The interpolation, shift and sharpening that follow in the paper are not part of this.
    """

    facts = Facts(
        name="cosine",
        year=2014,
        title="Neural Turing machines",
        paper="arXiv:1410.5401",
        formula="softmax(β cos(q, k)) v",
        time="L·M·K",
        memory="L·K",
    )

    def __init__(self, *, heads: int = 1, beta: float = 10.0):
        super().__init__()
        self.heads = heads
        self.log_beta_H = nn.Parameter(torch.full((heads,), math.log(beta)))

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q_BLHK, dim=-1) * self.log_beta_H.exp()[:, None], F.normalize(k_BMHK, dim=-1)

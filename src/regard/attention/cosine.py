"""Content-based addressing: the cosine similarity of query and key, scaled by a learned strength."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..bounds import Heads, Positive
from ._base import Facts, Paper
from ._score import DotProductAttention


class CosineAttention(DotProductAttention):
    r"""Only the directions of query and key matter; a strength β sets how sharply the nearest key is preferred.

    $$o_i = \sum_j \mathrm{softmax}_j\big(\beta\,\cos(q_i, k_j) + b_{ij}\big)\, v_j$$

    Cost:    time O(L·M·K), memory O(L·K): the tiled softmax kernel.
    Use it:  as content-addressable memory, or where the norm of keys must not matter: scores stay within ±β.
    Avoid it: where a key should be able to attract every query.
    Limits:  the number of heads is fixed at construction. A query that is exactly zero scores all keys alike, a zero key scores 0.
    Args:
        heads: number of heads, each with its own β.
        beta: initial strength β.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Graves, Wayne & Danihelka 2014, "Neural Turing machines", arXiv:1410.5401, section 3.3.1.
    We differ: β is learned through its logarithm, one per head, initialised to 10; in the paper the controller emits
             a β_t at each step. The interpolation, shift and sharpening that follow in the paper are not included.
    """

    facts = Facts(
        name="cosine",
        paper=Paper("Neural Turing machines", 2014, "arXiv:1410.5401"),
        formula="softmax(β cos(q, k)) v",
        time="L·M·K",
        memory="L·K",
    )

    def __init__(self, *, heads: Heads = 1, beta: Positive = 10.0):
        super().__init__()
        self.heads, self.beta = heads, beta
        self.log_beta_H = nn.Parameter(torch.full((heads,), math.log(beta)))

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q_BLHK, dim=-1) * self.log_beta_H.exp()[:, None], F.normalize(k_BMHK, dim=-1)

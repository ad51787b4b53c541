"""Luong's location score: the query alone determines which positions to attend to."""

from __future__ import annotations

import torch
from torch import Tensor

from ..bounds import Heads, Size
from ..patterns import Pattern
from ._base import Call, Facts, Paper
from ._cache import Cache
from ._score import ScoreAttention
from .helpers import uniform_parameter


class LocationAttention(ScoreAttention):
    r"""The query chooses positions, whatever their content: keys are not read.

    $$o_i = \sum_j \mathrm{softmax}_j\big((W q_i)_j + b_{ij}\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·N·K + L·M·V) for `max_length` N; memory L·N plus chunks of rows; N·K parameters per head.
    Use it:  as the baseline that content-based scores must beat, and where order alone matters.
    Avoid it: for inputs longer than in training: the columns of W for unseen positions are untrained.
    Limits:  at most `max_length` keys. Masked keys are excluded from the softmax, so short rows sum to one.
    Args:
        head_dim: size K of queries.
        max_length: maximum number of keys N.
        heads: number of heads, each with its own W.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (location).
    We differ: positions count from the first key; the paper reads the source backwards.
    """

    facts = Facts(
        name="location",
        paper=Paper("Effective approaches to attention-based neural machine translation", 2015, "arXiv:1508.04025"),
        formula="softmax(Wq) v",
        time="L·M·K",
        memory="L·M",
        positional=True,
    )

    def __init__(self, *, head_dim: Size, max_length: Size, heads: Heads = 1):
        super().__init__()
        self.heads, self.head_dim, self.max_length = heads, head_dim, max_length
        self.w_HKN = uniform_parameter(heads, head_dim, max_length, fan=head_dim)

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return torch.einsum("blhk,hkn->blhn", q_BLHK, self.w_HKN), k_BMHK

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        B, L, H, N = q_BLHK.shape
        at_BHLM = call.key_positions().clamp(0, N - 1)[:, None, None]  # keys before a row's start are out of range, and masked
        return q_BLHK.transpose(1, 2).gather(-1, at_BHLM.expand(B, H, L, -1))

    def _start(self, batch: int, pattern: Pattern) -> Cache:
        return Cache(batch)  # keeps every key, whatever the pattern: scores are read by position, and there are at most `max_length`

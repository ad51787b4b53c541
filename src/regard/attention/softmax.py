"""Exact attention: the softmax of scaled dot products, under any pattern."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bounds import Finite, HeadCount, Positive, Probability
from ..errors import ShapeError
from ..kernels import attend
from ._base import Attention, Call, Facts, Paper
from .helpers import share_heads, softmax_where


class SoftmaxAttention(Attention):
    r"""Each query is compared with every key it may attend to; the softmax of the dot products weights the values.

    $$o_i = \sum_j \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K} + b_{ij}\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·M·K) dense, O(pairs·K) under a pattern; memory O(L·K): L × M is never stored, not even in training.
    Use it:  first. It is exact, takes any pattern, bias and number of key heads, and tiles make sparse patterns cheap.
    Avoid it: dense, beyond about ten thousand tokens.
    Limits:  none.
    Args:
        scale: factor of the dot products; 1/√K if not given.
        softcap: bound of the scores, cap·tanh(s/cap); None: unbounded.
        sinks: number of heads if each has a learned logit without a value; 0: none has.
        dropout: probability of dropping an attention weight in training.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, eq. 1. Computed blockwise after
             Rabe & Staats 2021 (arXiv:2112.05682) and Dao et al. 2022 (arXiv:2205.14135).
    Beyond it: `softcap` bounds scores to cap·tanh(s/cap) (Gemma 2); `sinks` is the number of heads with a learned
             logit that takes up weight without a value (gpt-oss); `dropout` acts on the weights, in training only.
    """

    facts = Facts(
        name="softmax",
        paper=Paper("Attention is all you need", 2017, "arXiv:1706.03762"),
        formula="softmax(q·k / √K) v",
        time="L·M·K",
        memory="L·K",
    )

    def __init__(self, *, scale: Finite | None = None, softcap: Positive | None = None, sinks: HeadCount = 0, dropout: Probability = 0.0):
        super().__init__()
        self.scale, self.softcap, self.sinks, self.dropout = scale, softcap, sinks, dropout
        self.sink_H = nn.Parameter(torch.zeros(sinks)) if sinks else None

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        H, K = q_BLHK.shape[2:]
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, H)) * (K**-0.5 if self.scale is None else self.scale)
        if self.softcap is not None:
            scores_BHLM = self.softcap * torch.tanh(scores_BHLM / self.softcap)
        return softmax_where(scores_BHLM + call.scores_bias(), call.mask(), self._sinks(H))

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return attend(
            q_BLHK,
            k_BMHK,
            v_BMHV,
            call.pattern,
            scale=self.scale,
            bias=call.bias,
            softcap=self.softcap,
            sink_H=self._sinks(q_BLHK.shape[2]),
            dropout=dropout,
        )

    def _sinks(self, heads: int) -> Tensor | None:
        """The logits of the sinks, one per head, or one for all."""
        if self.sink_H is not None and len(self.sink_H) not in (1, heads):
            raise ShapeError(f"SoftmaxAttention has sinks for {len(self.sink_H)} heads, got {heads}; make it with sinks={heads}")
        return self.sink_H

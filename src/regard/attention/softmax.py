"""Exact attention: the softmax of scaled dot products, under any pattern."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels import Bias, attend
from ..patterns import Pattern, causal, full
from ._base import Attention, Facts, bias_of, bias_rows, pattern_rows, share_heads, softmax_where
from ._state import Cache, State, remembered


class SoftmaxAttention(Attention):
    r"""Every query compares itself with every key it may see; the softmax of the products weighs the values.

    $$o_i = \sum_j \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K} + b_{ij}\big)\, v_j \qquad j \text{ allowed by the pattern}$$

    Cost:    time O(L·M·K) dense, O(pairs·K) under a pattern; memory O(L·K): L × M is never stored, in training neither.
    Use it:  first. It is exact, takes any pattern, bias and number of key heads, and the tiles make sparse patterns cheap.
    Avoid it: dense, beyond some ten thousand tokens.
    Limits:  none of the contract.
    Paper:   Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, eq. 1. Computed blockwise after
             Rabe & Staats 2021 (arXiv:2112.05682) and Dao et al. 2022 (arXiv:2205.14135).
    Beyond it: `softcap` bends scores to cap·tanh(s/cap) (Gemma 2); `sinks` learns a logit a head that takes weight and
             gives nothing (gpt-oss), for as many heads as given; `dropout` acts on the weights, in training only.
    """

    facts = Facts(
        name="softmax",
        year=2017,
        title="Attention is all you need",
        paper="arXiv:1706.03762",
        formula="softmax(q·k / √K) v",
        time="L·M·K",
        memory="L·K",
    )

    def __init__(self, *, scale: float | None = None, softcap: float | None = None, sinks: int = 0, dropout: float = 0.0):
        super().__init__()
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.sink_H = nn.Parameter(torch.zeros(sinks)) if sinks else None

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return self._weights(q_BLHK, k_BMHK, self.within(pattern), bias)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern, bias: Tensor | Bias | None) -> Tensor:
        (L, H, K), M = q_BLHK.shape[1:], k_BMHK.shape[1]
        k_BMHK = share_heads(k_BMHK, H)
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k_BMHK) * (K**-0.5 if self.scale is None else self.scale)
        if self.softcap is not None:
            scores_BHLM = self.softcap * torch.tanh(scores_BHLM / self.softcap)
        scores_BHLM = scores_BHLM + bias_of(bias, L, M, q_BLHK.device)
        return softmax_where(scores_BHLM, pattern.mask(L, M, q_BLHK.device), self.sink_H)

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        pattern = self.within(pattern)
        if state is not None:
            k_BMHK, v_BMHV, pattern, bias = remembered(state, q_BLHK, k_BMHK, v_BMHV, pattern, bias)
        return self._average(q_BLHK, k_BMHK, v_BMHV, pattern, bias)

    def _average(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, bias: Tensor | Bias | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return attend(
            q_BLHK, k_BMHK, v_BMHV, pattern, scale=self.scale, bias=bias, softcap=self.softcap, sink_H=self.sink_H, dropout=dropout
        )

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        return Cache(batch, self.within(pattern).reach())

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        L, M = q_BLHK.shape[1], k_BMHK.shape[1]
        here = pattern_rows(self.within(pattern), rows, L, M)
        return self._weights(q_BLHK[:, rows], k_BMHK, here, bias_rows(bias, rows, L, M))

    def extra_repr(self) -> str:
        said = {"scale": self.scale, "softcap": self.softcap, "dropout": self.dropout or None}
        return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)

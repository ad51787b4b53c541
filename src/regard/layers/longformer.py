r"""Longformer's layer: global tokens attend with their own projections.

$$o_i = \mathrm{attention}\big(W_q x_i,\, W_k x,\, W_v x\big)_{|i-j| \le r \,\lor\, j \in G} \quad i \notin G, \qquad
  o_i = \mathrm{attention}\big(W_q^g x_i,\, W_k^g x,\, W_v^g x\big) \quad i \in G$$

Global tokens average other values than the rest, so this is a layer; with shared projections it is the mechanism
`LongformerAttention`.

Paper: Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import SoftmaxAttention, State
from ..attention.helpers import pattern_rows
from ..attention.longformer import FromStart
from ..bounds import convert
from ..errors import ShapeError, StateNotSupported, UnknownArgument
from ..patterns import PatternLike, causal, from_tokens, full, to_tokens, window
from .multihead import CrossInput, MultiHead
from .packing import Packing

NO_STATE = "LongformerHeads cannot decode step by step: global tokens attend to the whole sequence; MultiHead can"


class LongformerHeads(MultiHead):
    """Self-attention within a window of `radius` to either side, plus global tokens `at`, which attend and are attended to everywhere.

    The caller's pattern (padding, `causal`) applies to both. Global positions beyond the end of a short sequence are left out.
    `global_qkv` has the layout of `qkv`. It supports neither step-by-step decoding nor cross-attention.

    Args:
        width: model width D.
        heads: number of heads.
        radius: keys on either side of the query.
        at: positions of the global tokens, counted from the start.
        dropout: probability of dropping an attention weight in training.

    Shape: x_BLD → out_BLD.
    """

    def __init__(self, width: int, heads: int, radius: int = 256, at: tuple[int, ...] = (0,), *, dropout: float = 0.0):
        super().__init__(width, heads, SoftmaxAttention(dropout=dropout))
        self.at = tuple(sorted(set(convert("LongformerHeads", "at", at, tuple[FromStart, ...]))))
        self.rule = (window(radius) | to_tokens(*self.at)) & ~from_tokens(*self.at)
        self.global_attention = SoftmaxAttention(dropout=dropout)
        self.global_qkv = nn.Linear(width, sum(self.sizes))

    def forward(
        self,
        x_BLD: Tensor,
        memory: CrossInput | PatternLike = None,
        pattern: PatternLike = full,
        state: State | None = None,
        packing: Packing | None = None,
        **unknown: Any,
    ) -> Tensor:
        if unknown:
            raise UnknownArgument(self, unknown)
        memory, pattern = self._memory_and_pattern(memory, pattern)
        q, k, v, at = self._local(x_BLD, memory, state, packing)
        L = q.shape[1]
        out_BLHV = self.attention(q, k, v, pattern & self.rule)
        if len(at):
            q, k, v = self._global(x_BLD, at, packing)
            out_BLHV = out_BLHV.index_copy(1, at, self.global_attention(q, k, v, pattern_rows(pattern, at, L, L)))
        if packing is not None:
            out_BLHV = packing.pack(out_BLHV)
        return self.out(out_BLHV.flatten(-2))

    def weights(
        self, x_BLD: Tensor, memory: CrossInput | PatternLike = None, pattern: PatternLike = full, state: State | None = None
    ) -> Tensor:
        L = x_BLD.shape[1]
        memory, pattern = self._memory_and_pattern(memory, pattern)
        q, k, _, at = self._local(x_BLD, memory, state)
        weights_BHLM = self.attention.weights(q, k, pattern & self.rule)
        if len(at):
            q, k, _ = self._global(x_BLD, at)
            weights_BHLM = weights_BHLM.index_copy(2, at, self.global_attention.weights(q, k, pattern_rows(pattern, at, L, L)))
        return weights_BHLM

    def start(self, batch: int, pattern: PatternLike = causal) -> State:
        raise StateNotSupported(NO_STATE)

    def projections(self) -> list[Tensor]:
        return [*super().projections(), *self.global_qkv.weight.split(self.sizes)]

    def _local(self, x_BLD: Tensor, memory: CrossInput, state: State | None, packing: Packing | None = None) -> tuple[Tensor, ...]:
        if memory is not None:
            raise ShapeError("LongformerHeads has no cross-attention and takes no memory; MultiHead does")
        if state is not None:
            raise StateNotSupported(NO_STATE)
        given = self._given(x_BLD, None, full, None, packing)
        inside = [n for n in self.at if n < given.q.shape[1]]
        return given.q, given.k, given.v, torch.tensor(inside, dtype=torch.long, device=x_BLD.device)

    def _global(self, x_BLD: Tensor, at: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the global tokens only, keys and values of all tokens."""
        rows, weight, bias = self.sizes[0], self.global_qkv.weight, self.global_qkv.bias
        kv = F.linear(x_BLD, weight[rows:], bias[rows:])
        if packing is not None:
            x_BLD, kv = packing.pad(x_BLD), packing.pad(kv)
        q = F.linear(x_BLD[:, at], weight[:rows], bias[:rows])
        k, v = kv.split(self.sizes[1:], -1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)) for x in (q, k, v))
        return q, k, v

r"""Longformer's layer: global tokens look with projections of their own.

$$o_i = \mathrm{attention}\big(W_q x_i,\, W_k x,\, W_v x\big)_{|i-j| \le r \,\lor\, j \in G} \quad i \notin G, \qquad
  o_i = \mathrm{attention}\big(W_q^g x_i,\, W_k^g x,\, W_v^g x\big) \quad i \in G$$

Rows of global tokens weigh other values than the rest, so this is a layer; with shared projections it is the mechanism
`LongformerAttention`.

Paper: Beltagy, Peters & Cohan 2020, "Longformer: the long-document transformer", arXiv:2004.05150, section 3.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import SoftmaxAttention, State
from ..attention._base import pattern_rows
from ..attention.longformer import from_start
from ..errors import ShapeError, StateNotSupported
from ..patterns import Pattern, causal, from_tokens, full, to_tokens, window
from ._states import Memory
from .multihead import MultiHead
from .packing import Packing


class LongformerHeads(MultiHead):
    """A sequence looks at itself: a window of `radius` to either side, and the global tokens `at`, which look everywhere.

    The caller's pattern (padding, `causal`) holds for both. Global tokens are counted from the start; those beyond the end of a
    short sequence are left out. `global_qkv` is laid out as `qkv` is. It cannot go step by step, nor look at a memory.
    """

    def __init__(self, width: int, heads: int, radius: int = 256, at: tuple[int, ...] = (0,), *, dropout: float = 0.0):
        super().__init__(width, heads, SoftmaxAttention(dropout=dropout))
        self.at = tuple(sorted(set(from_start("LongformerHeads", at))))
        self.rule = (window(radius) | to_tokens(*self.at)) & ~from_tokens(*self.at)
        self.global_attention = SoftmaxAttention(dropout=dropout)
        self.global_qkv = nn.Linear(width, sum(self.sizes))

    def forward(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | Memory | None = None,
        pattern: Pattern = full,
        state: State | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        q, k, v, at = self._local(x_BLD, memory_BMD, state, packing)
        L = q.shape[1]
        out_BLHV = self.attention(q, k, v, pattern & self.rule)
        if len(at):
            q, k, v = self._global(x_BLD, at, packing)
            out_BLHV = out_BLHV.index_copy(1, at, self.global_attention(q, k, v, pattern_rows(pattern, at, L, L)))
        if packing is not None:
            out_BLHV = packing.pack(out_BLHV)
        return self.out(out_BLHV.flatten(-2))  # type: ignore[no-any-return]

    def weights(
        self, x_BLD: Tensor, memory_BMD: Tensor | Memory | None = None, pattern: Pattern = full, state: State | None = None
    ) -> Tensor:
        L = x_BLD.shape[1]
        q, k, _, at = self._local(x_BLD, memory_BMD, state)
        weights_BHLM = self.attention.weights(q, k, pattern & self.rule)
        if len(at):
            q, k, _ = self._global(x_BLD, at)
            weights_BHLM = weights_BHLM.index_copy(2, at, self.global_attention.weights(q, k, pattern_rows(pattern, at, L, L)))
        return weights_BHLM

    def start(self, batch: int, pattern: Pattern = causal) -> State:
        raise StateNotSupported("LongformerHeads cannot go step by step: global tokens look at the whole sequence; MultiHead can")

    def projections(self) -> list[Tensor]:
        return [*super().projections(), *self.global_qkv.weight.split(self.sizes)]

    def _local(
        self, x_BLD: Tensor, memory: Tensor | Memory | None, state: State | None, packing: Packing | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if memory is not None:
            raise ShapeError("LongformerHeads looks within one sequence and takes no memory; MultiHead does")
        if state is not None:
            self.start(len(x_BLD))  # raises, and says why
        given = self._given(x_BLD, None, full, None, packing)
        inside = [n for n in self.at if n < given.q.shape[1]]
        return given.q, given.k, given.v, torch.tensor(inside, dtype=torch.long, device=x_BLD.device)

    def _global(self, x_BLD: Tensor, at: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the global tokens alone, keys and values of all."""
        rows, weight, bias = self.sizes[0], self.global_qkv.weight, self.global_qkv.bias
        kv = F.linear(x_BLD, weight[rows:], bias[rows:])
        if packing is not None:
            x_BLD, kv = packing.pad(x_BLD), packing.pad(kv)
        q = F.linear(x_BLD[:, at], weight[:rows], bias[:rows])
        k, v = kv.split(self.sizes[1:], -1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)) for x in (q, k, v))
        return q, k, v

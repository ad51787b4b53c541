"""Memory-compressed attention: a strided convolution shortens keys and values."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..bounds import Heads, Size
from ..errors import PatternNotSupported, StateNotSupported
from ..kernels import attend
from ..patterns import Causal, Full, Pattern, at_positions, causal, full, lengths, since
from ._base import Attention, Call, Facts, Paper
from ._cache import Cache
from ._state import State, positions, zero_rows
from .helpers import conjuncts, is_causal, share_heads, softmax_where, uniform_parameter


class CompressedState(State):
    """Complete blocks, compressed, and the few keys and values of the incomplete one."""

    def __init__(self, batch: int):
        super().__init__(batch)
        self.slots = Cache(batch)
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def complete_blocks(self, k_BMHK: Tensor, v_BMHV: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        """Append new keys and values to the pending ones; return those that now form complete blocks."""
        self.length += k_BMHK.shape[1]
        if self._k is not None and self._v is not None:
            k_BMHK, v_BMHV = torch.cat([self._k, k_BMHK], 1), torch.cat([self._v, v_BMHV], 1)
        whole = k_BMHK.shape[1] // stride * stride
        self._k, self._v = k_BMHK[:, whole:], v_BMHV[:, whole:]
        return k_BMHK[:, :whole], v_BMHV[:, :whole]

    def reorder(self, rows: Tensor) -> Self:
        self.slots.reorder(rows)
        self._k = None if self._k is None else self._k.index_select(0, rows)
        self._v = None if self._v is None else self._v.index_select(0, rows)
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        self.slots.reset(rows)
        self._k = None if self._k is None else zero_rows(self._k, rows)
        self._v = None if self._v is None else zero_rows(self._v, rows)
        return super().reset(rows)

    def first_blocks(self, device: torch.device) -> Tensor:
        """The first block of each row."""
        return self.slots.length - positions(self.slots.position(), 1, device).expand(self.batch, 1)[:, 0]

    @property
    def pending(self) -> int:
        """Number of keys in the incomplete block."""
        return 0 if self._k is None else self._k.shape[1]

    def _check_join(self, other: State) -> None:
        super()._check_join(other)
        assert isinstance(other, CompressedState)
        if self.pending != other.pending:
            raise StateNotSupported(
                f"cannot join rows whose last blocks hold {self.pending} and {other.pending} keys: rows of one batch complete their blocks "
                "together; run them one by one"
            )

    def join(self, other: Self) -> Self:
        self._check_join(other)
        pairs = ((self._k, other._k), (self._v, other._v))
        self._k, self._v = (None if one is None or two is None else torch.cat([one, two]) for one, two in pairs)
        self.slots.join(other.slots)
        return super().join(other)

    def detach(self) -> Self:
        self.slots.detach()
        self._k = None if self._k is None else self._k.detach()
        self._v = None if self._v is None else self._v.detach()
        return self


class MemoryCompressedAttention(Attention):
    r"""Every `stride` neighbouring keys are merged into one, and so are their values; queries stay as they are.

    $$o_i = \sum_u \mathrm{softmax}_u\big(q_i^\top k'_u / \sqrt{K}\big)\, v'_u \qquad
      k'_u = \sum_{t<s} W_t\, k_{us+t}, \quad v'_u = \sum_{t<s} c_t\, v_{us+t}$$

    Cost:    time O(L·M·K/s + M·K²), memory O((L + M)·K); M/s keys per decoding step.
    Use it:  in decoders over a few thousand tokens, in every other layer, alternating with exact local attention.
    Avoid it: alone: under `causal` a query attends neither to itself nor to its newest neighbours before their block is complete.
    Limits:  heads and head size are fixed at construction. Under `causal` a block is visible once its last key is not
             in the future, so the first s − 1 queries give zeros. Streams under `causal` only; a row that is reset
             keeps the block boundaries of the stream: earlier tokens count as zeros in the block it was reset in.
    Weights: softmax(q·k') times the matrix of c, over the original keys; rows sum to one if the c_t of the head do.
    Args:
        head_dim: size K of queries and keys.
        heads: number of heads, each with its own W and c.
        stride: number s of neighbouring keys that are merged into one.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Liu et al. 2018, "Generating Wikipedia by summarizing long sequences", arXiv:1801.10198, section 4.2: s = 3.
    We differ: on values the convolution has one number c_t per head and offset. The paper's mixes features too, so
             that no single weight belongs to a key; W_v and W_o mix features before and after. Convolutions are per
             head and have no bias (it would cancel in the softmax, and would not be an average). An incomplete last
             block is zero-padded and visible under `full`; the paper does not say.
    """

    facts = Facts(
        name="memory_compressed",
        paper=Paper("Generating Wikipedia by summarizing long sequences", 2018, "arXiv:1801.10198"),
        formula="softmax(q·conv(k) / √K) conv(v)",
        time="L·M·K/s + M·K²",
        memory="(L + M)·K",
        patterns=("full", "causal", "lengths"),
        normalised=False,
        positional=True,
        state=CompressedState,
        bias=False,
    )

    def __init__(self, *, head_dim: Size, heads: Heads = 1, stride: Size = 3):
        super().__init__()
        self.heads, self.head_dim, self.stride = heads, head_dim, stride
        self.w_HSKK = uniform_parameter(heads, stride, head_dim, head_dim, fan=stride * head_dim)
        self.c_HS = nn.Parameter(torch.full((heads, stride), 1 / stride))  # the mean of the block

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        (_, H, K), M, s, device = q_BLHK.shape[1:], call.keys, self.stride, call.device
        k_BMHK = share_heads(k_BMHK, H)
        slot_U, offset_S, j_M = torch.arange(-(-M // s), device=device), torch.arange(s, device=device), torch.arange(M, device=device)
        kept_BM = call.pattern.mask(1, M, device)[:, 0, 0]  # the last query attends to all but padding
        holds_BUSM = (slot_U[:, None, None] * s + offset_S[:, None] == j_M) & kept_BM[:, None, None]
        selected_BUSM = holds_BUSM.to(q_BLHK.dtype)
        k_BUHK = torch.einsum("busm,bmhk,hska->buha", selected_BUSM.expand(len(k_BMHK), -1, -1, -1), k_BMHK, self.w_HSKK)
        scores_BHLU = torch.einsum("blhk,buhk->bhlu", q_BLHK, k_BUHK) / K**0.5
        allowed_BLU = holds_BUSM.any(-1).any(-1)[:, None]
        if is_causal(call.pattern):
            allowed_BLU = allowed_BLU & (slot_U * s + s - 1 <= call.query_index()[:, None])
        values_BHUM = torch.einsum("hs,busm->bhum", self.c_HS, selected_BUSM)
        return softmax_where(scores_BHLU, allowed_BLU[:, None]) @ values_BHUM

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        k_BMHK, v_BMHV = (share_heads(x, q_BLHK.shape[2]) for x in (k_BMHK, v_BMHV))
        if isinstance(call.state, CompressedState):
            return self._step(q_BLHK, k_BMHK, v_BMHV, call.pattern, call.state)
        over: Pattern = full
        if not isinstance(call.pattern, Full | Causal):
            kept_BM = call.pattern.mask(1, call.keys, call.device)[:, 0, 0]
            k_BMHK, v_BMHV = (x.masked_fill(~kept_BM[..., None, None], 0) for x in (k_BMHK, v_BMHV))
            over = lengths(-(-kept_BM.sum(1) // self.stride))
        k_BUHK, v_BUHV = self._compress(k_BMHK, v_BMHV)
        if is_causal(call.pattern):
            slots = k_BUHK.shape[1]
            over = over & self._past(call.query_index(), slots, slots * self.stride)
        return attend(q_BLHK, k_BUHK, v_BUHV, over)

    def _step(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, state: CompressedState) -> Tensor:
        if not is_causal(pattern):
            raise PatternNotSupported(
                f"MemoryCompressedAttention streams under `causal` and `causal & lengths`, not `{pattern}`; SoftmaxAttention takes any"
            )
        device = q_BLHK.device
        over: Pattern = full
        at_BM = positions(state.position(), k_BMHK.shape[1], device)
        for rule in conjuncts(pattern):
            if isinstance(rule, lengths):  # padding is zeroed, and blocks of padding alone are masked
                n_B = rule.keys.to(device)
                padding_BM = at_BM >= n_B[:, None]
                k_BMHK, v_BMHV = (x.masked_fill(padding_BM[..., None, None], 0) for x in (k_BMHK, v_BMHV))
                over = over & lengths(-(-n_B // self.stride) + state.first_blocks(device))
        k_BMHK, v_BMHV = state.complete_blocks(k_BMHK, v_BMHV, self.stride)
        k_BUHK, v_BUHV, _ = state.slots.append(*self._compress(k_BMHK, v_BMHV), full)
        if not isinstance(state.position(), int):
            over = over & since(state.first_blocks(device))
        at_L = torch.arange(state.length - q_BLHK.shape[1], state.length, device=device)
        return attend(q_BLHK, k_BUHK, v_BUHV, self._past(at_L, k_BUHK.shape[1], state.length - state.pending) & over)

    def _past(self, at_L: Tensor, slots: int, stop: int) -> Pattern:
        """Queries at these positions attend to the blocks whose last key is not after them; the last block ends before `stop`."""
        return at_positions(causal, at_L, torch.arange(1 - slots, 1, device=at_L.device) * self.stride + stop - 1)

    def _compress(self, k_BMHK: Tensor, v_BMHV: Tensor) -> tuple[Tensor, Tensor]:
        short = -k_BMHK.shape[1] % self.stride
        k_BUSHK, v_BUSHV = (F.pad(x, (0, 0, 0, 0, 0, short)).unflatten(1, (-1, self.stride)) for x in (k_BMHK, v_BMHV))
        return torch.einsum("bushk,hska->buha", k_BUSHK, self.w_HSKK), torch.einsum("bushv,hs->buhv", v_BUSHV, self.c_HS)

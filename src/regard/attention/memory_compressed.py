"""Memory-compressed attention: keys and values shortened by a strided convolution."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import PatternNotSupported, ShapeError, StateNotSupported
from ..kernels import Bias, attend
from ..patterns import Both, Causal, Full, Pattern, causal, full, lengths, placed, since
from ._base import Attention, Facts, factors, softmax_where
from ._scored import fits, uniform
from ._state import Cache, State, begun_anew, places


class MemoryCompressedAttention(Attention):
    r"""Every `stride` neighbouring keys become one, and so do their values; queries are as many as ever.

    $$o_i = \sum_u \mathrm{softmax}_u\big(q_i^\top k'_u / \sqrt{K}\big)\, v'_u \qquad
      k'_u = \sum_{t<s} W_t\, k_{us+t}, \quad v'_u = \sum_{t<s} c_t\, v_{us+t}$$

    Cost:    time O(L·M·K/s + M·K²), memory O((L + M)·K); per step of decoding M/s keys.
    Use it:  in decoders of some thousand tokens, every other layer; the layers between look at their neighbourhood exactly.
    Avoid it: alone: under `causal` a query sees neither itself nor its newest neighbours before their block is complete.
    Limits:  heads and key size are fixed when it is made. Under `causal` a block is seen once its last key is not in the
             future, so the first s − 1 queries see nothing and give zeros. Step by step under `causal` only; a row that is
             reset keeps the blocks of the stream: what was before counts as zeros in the block it was reset in.
    Weights: softmax(q·k') times the matrix of c, over the original keys; they sum to one if the numbers c of a head do.
    Paper:   Liu et al. 2018, "Generating Wikipedia by summarizing long sequences", arXiv:1801.10198, section 4.2: s = 3.
    We differ: on values the convolution has one number c_t a head and place. The paper's mixes features too, and then no
             single weight belongs to a key; W_v and W_o mix features before and after. Convolutions are a head's own, and
             have no shift (it would cancel in the softmax, and be no average). A last block that is not full is filled with
             zeros and seen under `full`; the paper does not say.
    """

    facts = Facts(
        name="memory_compressed",
        year=2018,
        title="Generating Wikipedia by summarizing long sequences",
        paper="arXiv:1801.10198",
        formula="softmax(q·conv(k) / √K) conv(v)",
        time="L·M·K/s + M·K²",
        memory="(L + M)·K",
        patterns=("full", "causal", "lengths"),
        normalised=False,
        positional=True,
        bias=False,
        grouped=False,
    )

    def __init__(self, *, width: int, heads: int = 1, stride: int = 3):
        super().__init__()
        if stride < 1:
            raise ShapeError(f"MemoryCompressedAttention makes one key of `stride`, so at least 1, got {stride}")
        self.heads, self.width, self.stride = heads, width, stride
        self.w_HSKK = uniform(heads, stride, width, width, fan=stride * width)
        self.c_HS = nn.Parameter(torch.full((heads, stride), 1 / stride))  # the mean of the block

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return self._rows(q_BLHK, k_BMHK, pattern, torch.arange(q_BLHK.shape[1], device=q_BLHK.device))

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return self._rows(q_BLHK, k_BMHK, pattern, rows)

    def _rows(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern, rows: Tensor) -> Tensor:
        (L, _, K), M, s, device = q_BLHK.shape[1:], k_BMHK.shape[1], self.stride, q_BLHK.device
        slot_U, place_S, j_M = torch.arange(-(-M // s), device=device), torch.arange(s, device=device), torch.arange(M, device=device)
        kept_BM = pattern.mask(1, M, device)[:, 0, 0]  # the newest query: all but padding
        holds_BUSM = (slot_U[:, None, None] * s + place_S[:, None] == j_M) & kept_BM[:, None, None]
        took_BUSM = holds_BUSM.to(q_BLHK.dtype)
        k_BUHK = torch.einsum("busm,bmhk,hska->buha", took_BUSM.expand(len(k_BMHK), -1, -1, -1), k_BMHK, self.w_HSKK)
        scores_BHLU = torch.einsum("blhk,buhk->bhlu", q_BLHK[:, rows], k_BUHK) / K**0.5
        seen_BLU = holds_BUSM.any(-1).any(-1)[:, None]
        if _is_causal(pattern):
            seen_BLU = seen_BLU & (slot_U * s + s - 1 <= rows[:, None] + M - L)
        values_BHUM = torch.einsum("hs,busm->bhum", self.c_HS, took_BUSM)
        return softmax_where(scores_BHLU, seen_BLU[:, None]) @ values_BHUM

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
        if state is not None:
            return self._step(q_BLHK, k_BMHK, v_BMHV, pattern, state)
        L, M, device = q_BLHK.shape[1], k_BMHK.shape[1], q_BLHK.device
        over: Pattern = full
        if not isinstance(pattern, Full | Causal):
            kept_BM = pattern.mask(1, M, device)[:, 0, 0]
            k_BMHK, v_BMHV = (x.masked_fill(~kept_BM[..., None, None], 0) for x in (k_BMHK, v_BMHV))
            over = lengths(-(-kept_BM.sum(1) // self.stride))
        k_BUHK, v_BUHV = self._compress(k_BMHK, v_BMHV)
        if _is_causal(pattern):
            slots = k_BUHK.shape[1]
            over = over & self._past(torch.arange(M - L, M, device=device), slots, slots * self.stride)
        return attend(q_BLHK, k_BUHK, v_BUHV, over)

    def start(self, batch: int, pattern: Pattern = causal) -> Compressed:
        return Compressed(batch)

    def check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        super().check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, self.width)

    def _step(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, state: State) -> Tensor:
        if not isinstance(state, Compressed):
            raise StateNotSupported(
                f"MemoryCompressedAttention goes on from a Compressed, not from a {type(state).__name__}; begin with attention.start(batch)"
            )
        if not _is_causal(pattern):
            raise PatternNotSupported(
                f"MemoryCompressedAttention goes step by step under `causal` and `causal & lengths`, not `{pattern}`; SoftmaxAttention takes any"
            )
        at_BM, device = places(state.position(), k_BMHK.shape[1], q_BLHK.device), q_BLHK.device
        over: Pattern = full
        for rule in factors(pattern):
            if isinstance(rule, lengths):  # padding enters no block, and blocks of padding only are not seen
                n_B = rule.keys.to(device)
                padding_BM = at_BM >= n_B[:, None]
                k_BMHK, v_BMHV = (x.masked_fill(padding_BM[..., None, None], 0) for x in (k_BMHK, v_BMHV))
                over = over & lengths(-(-n_B // self.stride) + state.begins(device))
        k_BMHK, v_BMHV = state.whole_blocks(k_BMHK, v_BMHV, self.stride)
        k_BUHK, v_BUHV, _ = state.slots.append(*self._compress(k_BMHK, v_BMHV), full)
        if not isinstance(state.position(), int):
            over = over & since(state.begins(device))
        at_L = torch.arange(state.length - q_BLHK.shape[1], state.length, device=device)
        return attend(q_BLHK, k_BUHK, v_BUHV, self._past(at_L, k_BUHK.shape[1], state.length - state.waiting) & over)

    def _past(self, at_L: Tensor, slots: int, stop: int) -> Pattern:
        """Queries at these positions see the blocks whose last key is not after them; the last block ends before `stop`."""
        return placed(causal, at_L, torch.arange(1 - slots, 1, device=at_L.device) * self.stride + stop - 1)

    def _compress(self, k_BMHK: Tensor, v_BMHV: Tensor) -> tuple[Tensor, Tensor]:
        short = -k_BMHK.shape[1] % self.stride
        k_BUSHK, v_BUSHV = (F.pad(x, (0, 0, 0, 0, 0, short)).unflatten(1, (-1, self.stride)) for x in (k_BMHK, v_BMHV))
        return torch.einsum("bushk,hska->buha", k_BUSHK, self.w_HSKK), torch.einsum("bushv,hs->buhv", v_BUSHV, self.c_HS)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, stride={self.stride}"


class Compressed(State):
    """The blocks that are complete, compressed, and the few keys and values of the one that is not."""

    def __init__(self, batch: int):
        super().__init__(batch)
        self.slots = Cache(batch)
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def whole_blocks(self, k_BMHK: Tensor, v_BMHV: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        """Add new keys and values to those that wait; return those that now make whole blocks."""
        self._check(len(k_BMHK))
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
        self._k = None if self._k is None else begun_anew(self._k, rows)
        self._v = None if self._v is None else begun_anew(self._v, rows)
        return super().reset(rows)

    def begins(self, device: torch.device) -> Tensor:
        """The first block of each row."""
        return self.slots.length - places(self.slots.position(), 1, device).expand(self.batch, 1)[:, 0]

    @property
    def waiting(self) -> int:
        """Keys of the block that is not complete."""
        return 0 if self._k is None else self._k.shape[1]

    def _joins(self, other: State) -> None:
        super()._joins(other)
        assert isinstance(other, Compressed)
        if self.waiting != other.waiting:
            raise StateNotSupported(
                f"the last blocks of these rows hold {self.waiting} and {other.waiting} keys, and rows of one batch complete their blocks "
                "together; go on with them one by one"
            )

    def join(self, other: Self) -> Self:
        self._joins(other)
        pairs = ((self._k, other._k), (self._v, other._v))
        self._k, self._v = (None if one is None or two is None else torch.cat([one, two]) for one, two in pairs)
        self.slots.join(other.slots)
        return super().join(other)

    def detach(self) -> Self:
        self.slots.detach()
        self._k = None if self._k is None else self._k.detach()
        self._v = None if self._v is None else self._v.detach()
        return self


def _is_causal(pattern: Pattern) -> bool:
    return isinstance(pattern, Causal) or (isinstance(pattern, Both) and (_is_causal(pattern.left) or _is_causal(pattern.right)))

r"""Heads and projections, once for every mechanism: several attentions side by side, each in a space of its own.

$$\mathrm{MultiHead}(x, m) = W_o\,[o_1; \dots; o_H] + b_o \qquad
  o_h = \mathrm{attention}\big(W_q^h x,\; W_k^{g} m,\; W_v^{g} m\big) \qquad g = \lfloor hG/H \rfloor$$

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. Fewer key heads: Shazeer 2019 (arXiv:1911.02150), Ainslie et
       al. 2023 (arXiv:2305.13245). Norms on q and k: Henry et al. 2020 (arXiv:2010.04245), Dehghani et al. 2023
       (arXiv:2302.05442).
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention import Attention, SoftmaxAttention, State
from ..errors import ShapeError, StateNotSupported
from ..kernels import Bias, applied, linear, parts
from ..patterns import Full, Pattern, causal, full
from ._states import Memory
from .norms import NoNorm, Norm
from .packing import Packing
from .positions import Position


class _Given(NamedTuple):
    """What the mechanism is given: q, k, v with their positions, the pattern over them, a bias, and what else it wants of each key."""

    q: Tensor
    k: Tensor
    v: Tensor
    pattern: Pattern
    bias: Bias | None
    extra: dict[str, Tensor]


class MultiHead(nn.Module):
    """Projects x (and a memory) to queries, keys and values, lets a mechanism average, and projects back.

    Without memory a sequence looks at itself. With memory, another sequence (or `remember(memory)`, its keys and values
    made once for many steps), x looks at that; a state then is one that counts how far the mechanism has come along it.
    Positions are aligned at the end: of L queries and M keys the last query stands at M − 1; so a memory that ends with x
    itself, as in Transformer-XL, has the right distances.

    kv_heads      heads of k and v, a divisor of `heads`: query heads share them in runs of neighbours
    head_width    size of a head's q and k, and of its v unless `value_width` says otherwise; width / heads if not given
    memory_width  width of the other sequence where it differs from x
    shared_qk     one projection makes q and k, as Reformer asks
    qk_norm       a norm for each head's q and k, e.g. `RMSNorm`, before positions
    position      any scheme of `positions` that acts on q, k or scores
    own           where a sequence that looks at itself may look at most, whatever the caller's pattern allows

    Layout: `qkv.weight` holds the rows of q, of k, of v, in this order, as `in_proj_weight` of PyTorch's module; `out` is its
    `out_proj`. With another `memory_width` there are two: `q`, and `kv`. `extra` makes what the mechanism wants of each key beside
    k and v, if it wants any.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        attention: Attention | None = None,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        memory_width: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        shared_qk: bool = False,
        qk_norm: Norm | None = None,
        position: Position | None = None,
        own: Pattern = full,
    ):
        super().__init__()
        groups = heads if kv_heads is None else kv_heads
        if head_width is None and (heads < 1 or width % heads):
            raise ShapeError(f"a width of {width} cannot be cut into {heads} heads of equal size; choose a divisor, or give head_width")
        if groups < 1 or heads % groups:
            raise ShapeError(f"{heads} query heads cannot share {groups} key heads; kv_heads must divide heads")
        if shared_qk and (groups != heads or memory_width not in (None, width)):
            raise ShapeError(
                f"shared_qk makes q and k with one projection: kv_heads={kv_heads} and memory_width={memory_width} must be left out"
            )
        K = width // heads if head_width is None else head_width
        V = K if value_width is None else value_width
        self.width, self.memory_width, self.heads, self.kv_heads = width, memory_width or width, heads, groups
        self.attention = SoftmaxAttention() if attention is None else attention
        self.position, self.own = position, own
        norm = NoNorm if qk_norm is None else qk_norm
        self.q_norm, self.k_norm = norm(K), norm(K)
        self.sizes = (heads * K, 0 if shared_qk else groups * K, groups * V)  # rows of q, k, v in the weights
        self.qkv = self.q = self.kv = None
        if self.memory_width == width:
            self.qkv = nn.Linear(width, sum(self.sizes), bias)
        else:
            self.q, self.kv = nn.Linear(width, self.sizes[0], bias), nn.Linear(self.memory_width, sum(self.sizes[1:]), bias)
        self.extra = nn.Linear(self.memory_width, groups * self.attention.extra) if self.attention.extra else None
        self.out = nn.Linear(heads * V, width if out_width is None else out_width, bias)

    def forward(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | Memory | None = None,
        pattern: Pattern = full,
        state: State | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        """With `packing` x is x_1TD, without padding, and so is the result; the same for the memory with `memory_packing`."""
        return applied(self.out, self.look(x_BLD, memory_BMD, pattern, state, packing, memory_packing).flatten(-2))

    def look(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | Memory | None = None,
        pattern: Pattern = full,
        state: State | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        """What each head found, out_BLHV, before `out` joins them."""
        if memory_BMD is not None and state is not None and state.grows:
            raise StateNotSupported(
                f"a {type(state).__name__} takes in new keys at every step, and a memory stays the same; "
                "for looking at it step by step pass remember(memory), and no state"
            )
        if memory_BMD is None and state is not None and not state.grows:
            raise StateNotSupported(
                f"{type(self.attention).__name__} goes step by step over a memory that stays, and a sequence that looks at itself "
                "grows with every step; SoftmaxAttention can do that, and this one can look at a memory"
            )
        given = self._given(x_BLD, memory_BMD, pattern, state, packing, memory_packing)
        out_BLHV = self.attention(given.q, given.k, given.v, given.pattern, given.bias, state, **given.extra)
        if packing is not None:
            out_BLHV = packing.pack(out_BLHV)
        return out_BLHV.reshape(*x_BLD.shape[:2], *out_BLHV.shape[2:])  # type: ignore[no-any-return]

    def weights(
        self, x_BLD: Tensor, memory_BMD: Tensor | Memory | None = None, pattern: Pattern = full, state: State | None = None
    ) -> Tensor:
        """Who looks at whom when `forward` is given the same: weights_BHLM. A state, one that counts only, is not moved."""
        given = self._given(x_BLD, memory_BMD, pattern, state)
        weights_BHLM = weights_now(self.attention, given.q, given.k, given.pattern, given.bias, state, **given.extra)
        return weights_BHLM.transpose(1, 2).reshape(*x_BLD.shape[:2], self.heads, -1).transpose(1, 2)

    def _given(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | Memory | None,
        pattern: Pattern,
        state: State | None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> _Given:
        self._check("x_BLD", x_BLD, self.width)
        if memory_BMD is None:
            pattern = pattern & self.own
            q, k, v = self._project(x_BLD, packing)
            extra = self._extra(x_BLD, packing)
            q_from = k_from = 0 if state is None else state.position()
        else:
            memory = memory_BMD if isinstance(memory_BMD, Memory) else self.remember(memory_BMD, memory_packing)
            q = self._query(x_BLD, packing)
            alike = self.attention.rows_apart and self.position is None and state is None and isinstance(pattern, Full)
            if memory.share > 1 and q.shape[1] == 1 and alike:
                q = q.reshape(-1, memory.share, *q.shape[2:])  # beams are further queries of the same memory: nothing of it is copied
            else:
                memory = memory.apart()
            k, v, extra = memory.k_BMHK, memory.v_BMHV, memory.extra_BMHE
            pattern = memory.pattern if isinstance(pattern, Full) else pattern & memory.pattern
            q_from, k_from = k.shape[1] - q.shape[1], 0
        bias = None
        if self.position is not None:
            q, k, bias = self.position.place(q, k, q_from, k_from)
        more = {} if extra is None else {"extra_BMHE": extra.to(v.dtype)}
        return _Given(q.to(v.dtype), k.to(v.dtype), v, pattern, bias, more)  # under autocast a norm or a learned vector gives float32 back

    def remember(self, memory_BMD: Tensor, packing: Packing | None = None, n_B: Tensor | None = None) -> Memory:
        """The keys and values of another sequence, to be looked at in many steps: pass the result as `memory`.

        `n_B`: how many tokens of each row are real; the others are not seen, whatever the pattern.
        """
        self._check("memory_BMD", memory_BMD, self.memory_width)
        q_rows, k_rows, v_rows = self.sizes
        kv = self._rows(memory_BMD, q_rows if k_rows else 0, None) if self.kv is None else self.kv(memory_BMD)
        k, v = _padded(kv, packing).split((k_rows or q_rows, v_rows), -1)
        return Memory(self.k_norm(_split(k, self.kv_heads)), _split(v, self.kv_heads), self._extra(memory_BMD, packing), n_B)

    def start(self, batch: int, pattern: Pattern = causal) -> State:
        """A fresh state for a sequence that looks at itself step by step; positions go on from `state.position()`."""
        return self.attention.start(batch, pattern & self.own)

    def projections(self) -> list[Tensor]:
        """The matrices of q, k, v as views, each apart: what an initialisation should see."""
        if self.qkv is not None:
            return [part for part in self.qkv.weight.split(self.sizes) if len(part)]
        assert self.q is not None and self.kv is not None
        return [self.q.weight, *self.kv.weight.split(self.sizes[1:])]

    def _project(self, x_BLD: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor, Tensor]:
        if self.qkv is None:
            raise ShapeError(
                f"this MultiHead looks from width {self.width} at a memory of width {self.memory_width}; pass the memory, "
                "or make it without memory_width"
            )
        made = [_padded(part, packing) for part in parts(self.qkv, x_BLD, [size for size in self.sizes if size])]
        q, k, v = made[0], made[-2], made[-1]  # one projection may make both q and k
        return self.q_norm(_split(q, self.heads)), self.k_norm(_split(k, self.kv_heads)), _split(v, self.kv_heads)

    def _extra(self, x_BMD: Tensor, packing: Packing | None) -> Tensor | None:
        return None if self.extra is None else _split(_padded(self.extra(x_BMD), packing), self.kv_heads)

    def _query(self, x_BLD: Tensor, packing: Packing | None = None) -> Tensor:
        q = self._rows(x_BLD, 0, self.sizes[0]) if self.q is None else applied(self.q, x_BLD)
        return self.q_norm(_split(_padded(q, packing), self.heads))  # type: ignore[no-any-return]

    def _rows(self, x: Tensor, first: int, last: int | None) -> Tensor:
        """Some rows of the fused projection only: another sequence is not projected to what it does not give."""
        assert self.qkv is not None
        bias = None if self.qkv.bias is None else self.qkv.bias[first:last]
        return linear(x, self.qkv.weight[first:last], bias)

    @staticmethod
    def _check(name: str, x: Tensor, width: int) -> None:
        if x.dim() != 3 or x.shape[-1] != width:
            raise ShapeError(f"MultiHead: {name} must be (batch, length, {width}), got {tuple(x.shape)}")


def weights_now(
    attention: Attention,
    q_BLHK: Tensor,
    k_BMHK: Tensor,
    pattern: Pattern = full,
    bias: Bias | None = None,
    state: State | None = None,
    **extra: Tensor,
) -> Tensor:
    """The weights_BHLM of the next call of a mechanism over a memory that stays, wherever its state stands; it is not moved.

    `attention.weights` knows no state. By the law of the contract, values that are the identity come back as the weights.
    """
    if state is None:
        return attention.weights(q_BLHK, k_BMHK, pattern, bias, **extra)
    if state.grows:
        raise StateNotSupported(f"a {type(state).__name__} takes in new keys with every call; regard.capture shows its weights")
    B, M, G = k_BMHK.shape[:3]
    identity_BMHM = torch.eye(M, dtype=k_BMHK.dtype, device=k_BMHK.device)[:, None].expand(B, M, G, M)
    # `forward` by name: whoever watches the calls of this mechanism should not see this one
    return attention.forward(q_BLHK, k_BMHK, identity_BMHM, pattern, bias, copy(state), **extra).transpose(1, 2)


def _padded(x: Tensor, packing: Packing | None) -> Tensor:
    return x if packing is None else packing.pad(x)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1))  # type: ignore[no-any-return]

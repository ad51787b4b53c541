r"""Multi-head attention: the projections around any mechanism, with several heads in parallel.

$$\mathrm{MultiHead}(x, m) = W_o\,[o_1; \dots; o_H] + b_o \qquad
  o_h = \mathrm{attention}\big(W_q^h x,\; W_k^{g} m,\; W_v^{g} m\big) \qquad g = \lfloor hG/H \rfloor$$

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. Fewer key heads: Shazeer 2019 (arXiv:1911.02150), Ainslie et
       al. 2023 (arXiv:2305.13245). Norms on q and k: Henry et al. 2020 (arXiv:2010.04245), Dehghani et al. 2023
       (arXiv:2302.05442).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention, SoftmaxAttention, State
from ..errors import DtypeError, PatternNotSupported, ShapeError, StateNotSupported, UnknownArgument
from ..kernels import Bias, apply_linear, fast_linear, split_linear
from ..patterns import Full, Pattern, PatternLike, as_pattern, causal, full, lengths
from .packing import Packing
from .positions import Position
from .positionwise import NoNorm, Norm
from .spec import Spec

LENGTH = 2048  # keys that a mechanism given by name is sized for; one that needs more is given as an object


class CrossCache(State):
    """Keys and values of another sequence, projected once and attended to in every step: k_BMHK, v_BMHV, and gates_BMHE if needed.

    The first n_B tokens of each row are real. It is reordered with the beams like any state, but beams of one sentence share their
    memory: it is stored once per run of `share` rows, and nothing is copied while beams change order within a run. `reset` leaves it
    as it is: rows that start again attend to the same memory.

    Args:
        k_BMHK: projected keys.
        v_BMHV: projected values.
        gates_BMHE: further numbers per key that the mechanism reads; None: none.
        n_B: number of real tokens of each row; None: all.
        share: batch rows (beams of one sentence) per row of the tensors.

    Shape: k_BMHK, v_BMHV, gates_BMHE and n_B hold one row per run of `share` rows.
    """

    def __init__(self, k_BMHK: Tensor, v_BMHV: Tensor, gates_BMHE: Tensor | None = None, n_B: Tensor | None = None, share: int = 1):
        super().__init__(len(k_BMHK) * share)
        self.k_BMHK, self.v_BMHV, self.gates_BMHE, self.share = k_BMHK, v_BMHV, gates_BMHE, share
        self.n_B = None if n_B is None or bool((n_B == k_BMHK.shape[1]).all()) else n_B

    @property
    def pattern(self) -> Pattern:
        """The keys that are not padding."""
        return full if self.n_B is None else lengths(self.n_B)

    def reorder(self, rows: Tensor) -> Self:
        whose = rows // self.share
        if len(rows) == self.batch and whose.equal(torch.arange(len(rows), device=rows.device) // self.share):
            return self
        kept, runs = torch.unique_consecutive(whose, return_counts=True)
        even = len(runs) > 0 and bool((runs == runs[0]).all())
        kept, self.share = (kept, int(runs[0])) if even else (whose, 1)
        if not kept.equal(torch.arange(len(self.k_BMHK), device=kept.device)):
            self._each(lambda x: x.index_select(0, kept))
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)
        one, two = (self, other) if self.share == other.share else (self.apart(), other.apart())
        sizes = [len(x) for x in (one.k_BMHK, two.k_BMHK)]
        shortest, longest = sorted(x.k_BMHK.shape[1] for x in (one, two))
        if shortest < longest or one.n_B is not None or two.n_B is not None:
            real = [
                torch.full((n,), x.k_BMHK.shape[1], device=x.k_BMHK.device) if x.n_B is None else x.n_B
                for x, n in zip((one, two), sizes, strict=True)
            ]
            self.n_B = torch.cat(real)
        self.k_BMHK, self.v_BMHV = below(one.k_BMHK, two.k_BMHK), below(one.v_BMHV, two.v_BMHV)
        if one.gates_BMHE is not None and two.gates_BMHE is not None:
            self.gates_BMHE = below(one.gates_BMHE, two.gates_BMHE)
        self.share = one.share
        return super().join(other)

    def apart(self) -> CrossCache:
        """Return a copy with one row per query row: nothing is shared."""
        if self.share == 1:
            return self
        one = copy(self)
        one._each(lambda x: x.repeat_interleave(self.share, 0))
        one.share = 1
        return one

    def reset(self, rows: Tensor) -> Self:
        return self

    def detach(self) -> Self:
        self._each(lambda x: x.detach())
        return self

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        self.k_BMHK, self.v_BMHV = change(self.k_BMHK), change(self.v_BMHV)
        self.gates_BMHE = None if self.gates_BMHE is None else change(self.gates_BMHE)
        self.n_B = None if self.n_B is None else change(self.n_B)


CrossInput: TypeAlias = (
    Tensor | CrossCache | None
)  # what cross-attention takes: another sequence, or its keys and values; None: self-attention


class _Given(NamedTuple):
    """Inputs of the mechanism: q, k, v with their positions, the pattern over them, a bias, and the gates of each key and query."""

    q: Tensor
    k: Tensor
    v: Tensor
    pattern: Pattern
    bias: Bias | None
    gates: Tensor | None
    query_gates: Tensor | None


class MultiHead(nn.Module):
    """Projects x (and a memory) to queries, keys and values, applies a mechanism, and projects its output.

    Without memory it is self-attention. With memory, another sequence (or `remember(memory)`, its keys and values projected once
    for many steps), it is cross-attention; a state then only counts the steps of the mechanism. Positions are aligned at the
    end: of L queries and M keys the last query is at position M − 1; so a memory that ends with x itself, as in Transformer-XL,
    has the right distances.

    Layout: `qkv.weight` holds the rows of q, of k, of v, in this order, as `in_proj_weight` of PyTorch's module; `out` is its
    `out_proj`. With another `memory_width` there are two: `q`, and `kv`. `gates` projects what the mechanism reads of each key besides
    k and v, `query_gates` what it reads of each query, if anything.

    Args:
        width: model width D, of x and of the output.
        heads: number of query heads H.
        attention: a mechanism, or its name as in "linear" or "local(radius=64)"; softmax attention by default.
        kv_heads: heads of k and v, a divisor of `heads`: consecutive query heads share one; `heads` by default.
        head_dim: size per head of q and k, and of v unless `value_dim` is given; width / heads by default.
        value_dim: size per head of v; `head_dim` by default.
        memory_width: width of the memory where it differs from x.
        out_width: width of the output where it differs from x.
        bias: give the projections a bias.
        qkv_bias: give q, k and v a bias; as `bias` by default.
        shared_qk: one projection for q and k, as in Reformer.
        qk_norm: factory of a norm of each head's q and k before positions, e.g. `RMSNorm`; None: no norm.
        head_norm: factory of a norm of each head's output before `out`; None: no norm.
        position: a scheme of `positions` that acts on q, k or scores; None: none.
        within: a pattern that restricts self-attention in addition to the caller's.

    Shape: x_BLD (and memory_BMD) → out_BLD; with `packing`, x_1TD → out_1TD.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        attention: Attention | str | None = None,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        memory_width: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        shared_qk: bool = False,
        qk_norm: Norm | None = None,
        head_norm: Norm | None = None,
        position: Position | None = None,
        within: PatternLike = full,
    ):
        super().__init__()
        groups = heads if kv_heads is None else kv_heads
        if head_dim is None and (heads < 1 or width % heads):
            raise ShapeError(f"width={width} cannot be split into {heads} heads of equal size; choose a divisor, or give head_dim")
        if groups < 1 or heads % groups:
            raise ShapeError(f"{heads} query heads cannot share {groups} key heads; kv_heads must divide heads")
        if shared_qk and (groups != heads or memory_width not in (None, width)):
            raise ShapeError(f"shared_qk=True with kv_heads={kv_heads}, memory_width={memory_width}; leave them out, as q and k are one")
        K = width // heads if head_dim is None else head_dim
        V = K if value_dim is None else value_dim
        self.width, self.memory_width, self.heads, self.kv_heads = width, memory_width or width, heads, groups
        if isinstance(attention, str):
            spec = Spec.read(attention)
            attention, within = spec.build(heads=heads, head_dim=K, length=LENGTH), spec.pattern & as_pattern(within)
        self.attention = SoftmaxAttention() if attention is None else attention
        self.position, self.within = position, as_pattern(within)
        norm = NoNorm if qk_norm is None else qk_norm
        self.q_norm, self.k_norm = norm(K), norm(K)
        self.sizes = (heads * K, 0 if shared_qk else groups * K, groups * V)  # rows of q, k, v in the projection
        self.head_norm = NoNorm(V) if head_norm is None else head_norm(V)
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.qkv = self.q = self.kv = None
        if self.memory_width == width:
            self.qkv = nn.Linear(width, sum(self.sizes), qkv_bias)
        else:
            self.q, self.kv = nn.Linear(width, self.sizes[0], qkv_bias), nn.Linear(self.memory_width, sum(self.sizes[1:]), qkv_bias)
        self.gates: nn.Linear | None
        self.query_gates: nn.Linear | None
        self.project_gates()
        self.out = nn.Linear(heads * V, width if out_width is None else out_width, bias)

    def forward(
        self,
        x_BLD: Tensor,
        memory: CrossInput | PatternLike = None,
        pattern: PatternLike = full,
        state: State | None = None,
        packing: Packing | None = None,
        **unknown: Any,
    ) -> Tensor:
        """Project, attend under the pattern, and project the output.

        Args:
            x_BLD: activations.
            memory: the other sequence, memory_BMD, or `remember(memory)`; None: it is in the state, or it is self-attention. A pattern in
                its place is the pattern of self-attention: `heads(x, causal)`.
            pattern: pairs that are allowed.
            state: state of earlier calls, which advances; None: a whole sequence.
            packing: positions of the real tokens; x and the result then have no padding, x_1TD. A memory without padding is passed as
                `remember(memory, packing)`.
            **unknown: refused: arguments of PyTorch's module, with what to write instead.
        """
        if unknown:
            raise UnknownArgument(self, unknown)
        out_BLHV = self.head_outputs(x_BLD, memory, pattern, state, packing)
        return apply_linear(self.out, self.head_norm(out_BLHV).flatten(-2))

    def head_outputs(
        self,
        x_BLD: Tensor,
        memory: CrossInput | PatternLike = None,
        pattern: PatternLike = full,
        state: State | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """The average of each head, out_BLHV, before `head_norm` and `out`.

        Args:
            x_BLD: activations.
            memory: the other sequence, memory_BMD, or `remember(memory)`; None: it is in the state, or it is self-attention.
            pattern: pairs that are allowed.
            state: state of earlier calls, which advances; None: a whole sequence.
            packing: positions of the real tokens; x and the result then have no padding, x_1TD.
        """
        memory, pattern = self._memory_and_pattern(memory, pattern)
        if memory is not None and state is not None and state.grows:
            raise StateNotSupported(
                f"a {type(state).__name__} adds new keys at every step, and a memory stays the same; "
                "for cross-attention step by step pass remember(memory) and no state"
            )
        if memory is None and state is not None and not state.grows:
            raise StateNotSupported(
                f"{type(self.attention).__name__} decodes step by step in cross-attention only, not in self-attention, whose keys "
                "grow with every step; SoftmaxAttention supports both"
            )
        given = self._given(x_BLD, memory, pattern, state, packing)
        out_BLHV = self.attention(given.q, given.k, given.v, given.pattern, given.bias, state, given.gates, given.query_gates)
        if packing is not None:
            out_BLHV = packing.pack(out_BLHV)
        return out_BLHV.reshape(*x_BLD.shape[:2], *out_BLHV.shape[2:])

    def weights(
        self, x_BLD: Tensor, memory: CrossInput | PatternLike = None, pattern: PatternLike = full, state: State | None = None
    ) -> Tensor:
        """The attention weights of `forward` for the same arguments, weights_BHLM. A state does not advance.

        Args:
            x_BLD: activations.
            memory: the other sequence, memory_BMD, or `remember(memory)`; None: it is in the state, or it is self-attention.
            pattern: pairs that are allowed.
            state: state of earlier calls, which does not advance; None: a whole sequence.
        """
        given = self._given(x_BLD, *self._memory_and_pattern(memory, pattern), state)
        weights_BHLM = self.attention.weights(
            given.q, given.k, given.pattern, given.bias, given.gates, state=state, query_gates_BLHE=given.query_gates
        )
        return weights_BHLM.transpose(1, 2).reshape(*x_BLD.shape[:2], self.heads, -1).transpose(1, 2)

    def _memory_and_pattern(self, memory: CrossInput | PatternLike, pattern: PatternLike) -> tuple[CrossInput, Pattern]:
        """Both arguments of a call; a pattern in the place of the memory is that of self-attention."""
        if not isinstance(memory, Pattern | str):
            return memory, as_pattern(pattern)
        if not isinstance(pattern, Full):
            raise PatternNotSupported(f"MultiHead got two patterns, `{memory}` and `{pattern}`; combine them with &")
        return None, as_pattern(memory)

    def _given(self, x_BLD: Tensor, memory: CrossInput, pattern: Pattern, state: State | None, packing: Packing | None = None) -> _Given:
        self._check("x_BLD", x_BLD, self.width)
        if memory is None:
            pattern = pattern & self.within
            q, k, v = self._project(x_BLD, packing)
            gates, query_gates = self._gates(x_BLD, packing), self._query_gates(x_BLD, packing)
            q_from = k_from = 0 if state is None else state.position()
        else:
            memory = memory if isinstance(memory, CrossCache) else self.remember(memory)
            q, query_gates = self._query(x_BLD, packing), self._query_gates(x_BLD, packing)
            alike = self.attention.queries_stand_alone() and self.position is None and state is None and isinstance(pattern, Full)
            if memory.share > 1 and q.shape[1] == 1 and alike:
                # beams become further queries of the same memory, which is not copied
                q = q.reshape(-1, memory.share, *q.shape[2:])
                query_gates = None if query_gates is None else query_gates.reshape(*q.shape[:3], -1)
            else:
                memory = memory.apart()
            k, v, gates = memory.k_BMHK, memory.v_BMHV, memory.gates_BMHE
            pattern = memory.pattern if isinstance(pattern, Full) else pattern & memory.pattern
            q_from, k_from = k.shape[1] - q.shape[1], 0
        bias = None
        if self.position is not None:
            q, k, bias = self.position.encode(q, k, q_from, k_from)
        gates, query_gates = (None if x is None else x.to(v.dtype) for x in (gates, query_gates))
        # under autocast norms and learned vectors return float32
        return _Given(q.to(v.dtype), k.to(v.dtype), v, pattern, bias, gates, query_gates)

    def remember(self, memory_BMD: Tensor, packing: Packing | None = None, n_B: Tensor | None = None) -> CrossCache:
        """Project the keys and values of another sequence once for many steps: pass the result as `memory`.

        Args:
            memory_BMD: the other sequence.
            packing: positions of the real tokens of a memory without padding; None: it is padded.
            n_B: number of real tokens of each row of a padded memory, the rest of which is masked, whatever the pattern; None: all.
        """
        self._check("memory_BMD", memory_BMD, self.memory_width)
        q_rows, k_rows, v_rows = self.sizes
        kv = self._rows(memory_BMD, q_rows if k_rows else 0, None) if self.kv is None else self.kv(memory_BMD)
        k, v = _padded(kv, packing).split((k_rows or q_rows, v_rows), -1)
        return CrossCache(self.k_norm(_split(k, self.kv_heads)), _split(v, self.kv_heads), self._gates(memory_BMD, packing), n_B)

    def start(self, batch: int, pattern: PatternLike = causal) -> State:
        """A new state for self-attention step by step; positions continue from `state.position()`."""
        return self.attention.start(batch, as_pattern(pattern) & self.within)

    def project_gates(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Make fresh projections for the gates that the mechanism reads: after construction, and after `attention` was replaced."""
        keys, queries = self.kv_heads * self.attention.gates, self.heads * self.attention.query_gates
        self.gates = nn.Linear(self.memory_width, keys, device=device, dtype=dtype) if keys else None
        self.query_gates = nn.Linear(self.width, queries, device=device, dtype=dtype) if queries else None

    def projections(self) -> list[Tensor]:
        """The projection matrices of q, k and v as separate views, for initialisation."""
        if self.qkv is not None:
            return [part for part in self.qkv.weight.split(self.sizes) if len(part)]
        assert self.q is not None and self.kv is not None
        return [self.q.weight, *self.kv.weight.split(self.sizes[1:])]

    def _project(self, x_BLD: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor, Tensor]:
        if self.qkv is None:
            raise ShapeError(
                f"this MultiHead of width {self.width} attends to a memory of width {self.memory_width} and was given none; pass the memory, "
                "or build it without memory_width"
            )
        made = [_padded(part, packing) for part in split_linear(self.qkv, x_BLD, [size for size in self.sizes if size])]
        q, k, v = made[0], made[-2], made[-1]  # q and k may share a projection
        return self.q_norm(_split(q, self.heads)), self.k_norm(_split(k, self.kv_heads)), _split(v, self.kv_heads)

    def _gates(self, x_BMD: Tensor, packing: Packing | None) -> Tensor | None:
        return None if self.gates is None else _split(_padded(self.gates(x_BMD), packing), self.kv_heads)

    def _query_gates(self, x_BLD: Tensor, packing: Packing | None) -> Tensor | None:
        return None if self.query_gates is None else _split(_padded(self.query_gates(x_BLD), packing), self.heads)

    def _query(self, x_BLD: Tensor, packing: Packing | None = None) -> Tensor:
        q = self._rows(x_BLD, 0, self.sizes[0]) if self.q is None else apply_linear(self.q, x_BLD)
        return self.q_norm(_split(_padded(q, packing), self.heads))

    def _rows(self, x: Tensor, first: int, last: int | None) -> Tensor:
        """Apply some rows of the fused projection: a memory needs no queries, and x no keys of its own."""
        assert self.qkv is not None
        bias = None if self.qkv.bias is None else self.qkv.bias[first:last]
        return fast_linear(x, self.qkv.weight[first:last], bias)

    @staticmethod
    def _check(name: str, x: Tensor, width: int) -> None:
        if not isinstance(x, Tensor):
            raise DtypeError(f"MultiHead: {name} must be a tensor, got {type(x).__name__}; torch.as_tensor(x) makes one of a NumPy array")
        if x.dim() != 3 or x.shape[-1] != width:
            raise ShapeError(f"MultiHead: {name} must be (batch, length, {width}), got {tuple(x.shape)}")


def _padded(x: Tensor, packing: Packing | None) -> Tensor:
    return x if packing is None else packing.pad(x)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1))


def below(one_BMD: Tensor, two_BMD: Tensor) -> Tensor:
    """Concatenate two batches; the shorter sequences are padded with zeros."""
    length = max(one_BMD.shape[1], two_BMD.shape[1])
    return torch.cat([F.pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.shape[1])) for x in (one_BMD, two_BMD)])

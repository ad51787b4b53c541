"""The contract of a mechanism: attention is a weighted average of values, and these are the weights.

    weights(q, k)      the definition: readable, runs anywhere, slow        rows are queries, columns are keys
    forward(q, k, v)   the fast path, which never forms L × M unless it must

**The law: `forward(q, k, v) == weights(q, k) @ v`**, outputs and gradients, in double precision. An approximation returns
the matrix it really uses, so the law stays exact. It gives the oracle, the picture and the explanation at once.

`weights` and `forward` are final: they check everything once, merge a cache into k and v, and call the hooks a mechanism writes:

    _weights(q, k, call)       required                             the definition
    _forward(q, k, v, call)    default: average(_weights), in chunks of rows    the fast path
    _within(pattern, length)   default: the pattern itself          a pattern of its own narrows the caller's
    _start(batch, pattern)     default: by `facts.state`            a fresh state

Most mechanisms subclass a base class that writes these from something smaller: `ScoreAttention`, `DotProductAttention`,
`FeatureMapAttention`, `RecurrentAttention`, `PatternAttention`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from ..bounds import checked
from ..errors import (
    BiasNotSupported,
    CaptureNotSupported,
    DtypeError,
    NotSupported,
    PatternNotSupported,
    RegardError,
    ShapeError,
    StateNotSupported,
    UnknownArgument,
)
from ..kernels import Bias, inside_transform
from ..patterns import Pattern, PatternLike, as_pattern, at_positions, causal, full
from ._cache import Cache
from ._call import Call, Observation
from ._facts import Facts, Paper  # noqa: F401  a mechanism takes both from here
from ._recurrent_state import RecurrentState, StepState
from ._state import State
from .helpers import average, by_rows, conjuncts, rule_name


class Attention(nn.Module):
    """A mechanism: how much to attend, and where.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV. k and v may have fewer heads than q (grouped queries).
    Nothing is left on the module between two calls: what must be remembered is in `state`.

    Constructor arguments are keyword arguments with plain values, stored under their own names (`settings` reads them back). What was
    fixed at construction is declared in `heads`, `head_dim` and `max_length`, and checked here. A mechanism that reads further numbers
    per key token (a gate, a step size) says how many in `gates`, per query token in `query_gates`; MultiHead projects them from x as it
    projects k and q.
    """

    facts: ClassVar[Facts]
    heads: int | None = None  # number of query heads it is built for; None: any
    head_dim: int | None = None  # their size; None: any
    max_length: int | None = None  # maximum number of keys; None: any
    gates: int = 0  # numbers per key token and head it reads besides k and v
    query_gates: int = 0  # numbers per query token and head it reads besides q

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check arguments against the bounds in the constructor's types (`regard.bounds`), of classes outside the package too."""
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        self._observers: list[Callable[[Observation], None]] = []

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        """A mechanism that fits `heads` heads of size `head_dim` and up to `length` keys.

        The constructor gets those of `heads`, `head_dim` and `max_length` that it takes; most take none and fit any. A mechanism for grids
        also takes `columns`, the keys per row of the grid, and assumes a square grid without.

        Args:
            heads: number of heads H.
            head_dim: size K of each.
            length: number of keys M that it must take.
        """
        sizes = {"heads": heads, "head_dim": head_dim, "max_length": length}
        return cls(**{name: size for name, size in sizes.items() if name in inspect.signature(cls).parameters})

    @property
    def settings(self) -> dict[str, Any]:
        """Constructor arguments that differ from their defaults: `type(attention)(**attention.settings)` is one like it, untrained."""
        parameters = list(inspect.signature(type(self).__init__).parameters.values())[1:]
        values = {p.name: (getattr(self, p.name), p.default) for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @final
    def weights(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        pattern: PatternLike = full,
        bias: Tensor | Bias | None = None,
        gates_BMHE: Tensor | None = None,
        rows: Tensor | None = None,
        state: State | None = None,
        query_gates_BLHE: Tensor | None = None,
    ) -> Tensor:
        """The definition: weights_BHLM, zero where the pattern forbids.

        Args:
            q_BLHK: queries.
            k_BMHK: keys, of as many heads or of fewer.
            pattern: pairs that are allowed.
            bias: added to the scores; broadcasts to BHLM.
            gates_BMHE: gates per key token and head, if it reads any.
            rows: compute these queries only.
            state: a StepState; the weights of the next call over fixed keys. The state does not advance.
            query_gates_BLHE: gates per query token and head, if it reads any.
        """
        pattern = as_pattern(pattern, type(self).__name__)
        self._check(q_BLHK, k_BMHK, None, pattern, bias, state, gates_BMHE, query_gates_BLHE)
        if state is not None and state.grows:
            raise StateNotSupported(
                f"weights(…) cannot be computed with a {type(state).__name__}, to which each call adds keys; regard.capture shows the weights of its steps"
            )
        L, M = q_BLHK.shape[1], k_BMHK.shape[1]
        call = Call(self._within(pattern, M), bias, gates_BMHE, L, M, q_BLHK.device, state, query_gates_BLHE=query_gates_BLHE)
        if state is not None:
            return self._step_weights(q_BLHK, k_BMHK, call)
        return self._weights(q_BLHK, k_BMHK, call) if rows is None else self._weights_of(rows, q_BLHK, k_BMHK, call)

    def forward(  # final too, but nn.Module declares it as an attribute
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: PatternLike = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
        gates_BMHE: Tensor | None = None,
        query_gates_BLHE: Tensor | None = None,
        **unknown: Any,
    ) -> Tensor:
        """The weighted average out_BLHV. With `state`, over the past too, and the state advances.

        Args:
            q_BLHK: queries.
            k_BMHK: keys, of as many heads or of fewer.
            v_BMHV: values.
            pattern: pairs that are allowed.
            bias: added to the scores; broadcasts to BHLM.
            state: past of a stream, from `start`; None: a whole sequence.
            gates_BMHE: gates per key token and head, if it reads any.
            query_gates_BLHE: gates per query token and head, if it reads any.
            **unknown: refused: arguments of PyTorch's functions, with what to write instead.
        """
        if unknown:
            raise UnknownArgument(self, unknown)
        pattern = as_pattern(pattern, type(self).__name__)
        if torch.compiler.is_compiling():
            run = _export if torch.compiler.is_exporting() else _run_eagerly
            return run(self, q_BLHK, k_BMHK, v_BMHV, pattern, bias, state, gates_BMHE, query_gates_BLHE)
        self._check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state, gates_BMHE, query_gates_BLHE)
        L, M, cache = q_BLHK.shape[1], k_BMHK.shape[1], None
        within = pattern = self._within(pattern, M if state is None else state.length + M)
        if isinstance(state, Cache):
            k_BMHK, v_BMHV, pattern = state.append(k_BMHK, v_BMHV, pattern, gates_BMHE)
            bias, gates_BMHE, M, cache, state = state.bias_over(bias, L), state.gates(), k_BMHK.shape[1], state, None
        call = Call(pattern, bias, gates_BMHE, L, M, q_BLHK.device, state, cache, query_gates_BLHE=query_gates_BLHE)
        observed = replace(call, state=copy(state)) if self._observers and isinstance(state, StepState) else call  # before it moves on
        if inside_transform():
            out_BLHV = self._transformed(q_BLHK, k_BMHK, v_BMHV, call)
        elif state is None and not (q_BLHK.numel() and k_BMHK.numel()):  # nothing to be fast at; a part of the graph all the same
            out_BLHV = average(self._weights(q_BLHK, k_BMHK, call), v_BMHV)
        else:
            out_BLHV = self._forward(q_BLHK, k_BMHK, v_BMHV, call)
        for observer in self._observers:
            observer(self._observation(q_BLHK, k_BMHK, observed, within))
        return out_BLHV

    def gate_shapes(self, q_BLHK: Tensor, k_BMHK: Tensor) -> dict[str, tuple[int, ...]]:
        """Shapes of the gates it reads beside these queries and keys, by argument; empty if it reads none."""
        read = {"gates_BMHE": (k_BMHK, self.gates), "query_gates_BLHE": (q_BLHK, self.query_gates)}
        return {name: (*like.shape[:3], count) for name, (like, count) in read.items() if count}

    @final
    def start(self, batch: int, pattern: PatternLike = causal) -> State:
        """A fresh state for streaming self-attention under `pattern`."""
        if self.facts.state is None:
            raise StateNotSupported(f"{type(self).__name__} cannot stream: each query needs all keys at once; SoftmaxAttention can")
        return self._start(batch, self._within(as_pattern(pattern), 1 << 30))

    @final
    def start_cross(self, batch: int) -> State | None:
        """A fresh state for queries that come one by one over fixed keys: a StepState, or None if none is needed."""
        if self.facts.state is StepState:
            return self.start(batch, full)
        if self.facts.rows == "independent":
            return None
        raise StateNotSupported(
            f"{type(self).__name__} cannot process queries one by one: each depends on the others; SoftmaxAttention can"
        )

    @classmethod
    def supports(cls, pattern: PatternLike) -> bool:
        """True if the mechanism supports this pattern."""
        pattern = as_pattern(pattern)
        supported = cls.facts.patterns
        if supported == "any":
            return True
        names = {rule_name(rule) for rule in conjuncts(pattern)}
        return names <= set(supported) and ("full" in supported or "causal" in names)

    @classmethod
    def queries_stand_alone(cls) -> bool:
        """True if a query gives alone what it gives among others over the same keys: neither they nor its position count."""
        return cls.facts.rows == "independent" and cls.facts.cross is True

    def documents_stand_alone(self) -> bool:
        """True if documents packed in one row are each read as if alone under `segments`."""
        return self.facts.patterns == "any" and not self.facts.positional

    @classmethod
    def decoding_obstacle(cls) -> str | None:
        """The reason why a decoder cannot use it for self-attention, token by token; None if it can."""
        if cls.facts.causal != "strict":
            leak = "only mask-causal" if cls.facts.causal == "mask-only" else "not causal"
            return f"the decoder needs a strictly causal mechanism; this one is {leak}"
        if cls.facts.state in (None, StepState):
            return "the decoder runs step by step, and this mechanism cannot stream"
        return None

    @property
    def reads_gates(self) -> bool:
        """True if it reads gates, which MultiHead projects: q, k and v are not enough."""
        return bool(self.gates or self.query_gates)

    @contextmanager
    def observe(self, observer: Callable[[Observation], None]) -> Iterator[None]:
        """Inside the `with`, call `observer` after each forward pass; outputs are unchanged. `regard.capture` is built on it."""
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())

    # -- hooks -------------------------------------------------------------------------------------------------------

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        """weights_BHLM of the given queries, under `call.pattern`."""
        raise NotImplementedError

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        """out_BLHV. By default the definition, a chunk of query rows at a time."""
        if self.facts.rows != "independent":
            return average(self._weights(q_BLHK, k_BMHK, call), v_BMHV)

        def attend_rows(rows: Tensor) -> Tensor:
            return average(self._weights(q_BLHK[:, rows], k_BMHK, call.of_rows(rows)), v_BMHV)

        return by_rows(attend_rows, q_BLHK, v_BMHV, q_BLHK.shape[2] * call.keys)

    def _weights_of(self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        """weights_BHLM of some queries only. Override it (and `_rows_cheap`) where rows are joint, yet cheaper one by one."""
        if self.facts.rows == "independent":
            return self._weights(q_BLHK[:, rows], k_BMHK, call.of_rows(rows))
        return self._weights(q_BLHK, k_BMHK, call)[:, :, rows]

    def _step_weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        """weights_BHLM from a StepState on, which does not move: by the law, values that are the identity come back as the weights."""
        M = call.keys
        identity_BMHM = torch.eye(M, dtype=k_BMHK.dtype, device=k_BMHK.device)[:, None].expand(*k_BMHK.shape[:3], M)
        return self._forward(q_BLHK, k_BMHK, identity_BMHM, replace(call, state=copy(call.state))).transpose(1, 2)

    def _within(self, pattern: Pattern, length: int) -> Pattern:
        """The pattern it attends under, given the caller's, for up to `length` keys."""
        return pattern

    def _start(self, batch: int, pattern: Pattern) -> State:
        """A fresh state; `pattern` is narrowed already."""
        kind = self.facts.state
        assert kind is not None
        return Cache(batch, pattern.reach()) if kind is Cache else kind(batch)

    def _transformed(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        """The definition, inside a transform of torch.func: those do not go through autograd functions written for speed."""
        if call.state is not None or call.cache is not None:
            raise StateNotSupported(f"{type(self).__name__} does not stream inside a transform of torch.func; leave `state` out")
        try:
            return average(self._weights(q_BLHK, k_BMHK, call), v_BMHV)
        except RuntimeError as error:  # vmap: no sizes or choices that depend on numbers
            reason = str(error).partition("\n")[0]
            raise NotSupported(f"{type(self).__name__} cannot be transformed by torch.func: {reason}") from error

    # -- checks ------------------------------------------------------------------------------------------------------

    def _observation(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call, within: Pattern) -> Observation:
        state = call.state
        if isinstance(state, RecurrentState) and state.kept is not None:  # the keys were kept for this
            k_BMHK, gates_BMHE = state.kept.keys_and_values()
            call = replace(
                call,
                pattern=state.kept.over(call.pattern, call.queries),
                gates_BMHE=gates_BMHE if gates_BMHE.shape[-1] else None,
                keys=k_BMHK.shape[1],
                state=None,
                cache=state.kept,
            )
        return Observation(self, q_BLHK.detach(), k_BMHK.detach(), call, within)

    def _check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None,
        state: State | None,
        gates_BMHE: Tensor | None = None,
        query_gates_BLHE: Tensor | None = None,
    ) -> None:
        """Refuse by name what does not fit together or what this mechanism cannot do."""
        name, facts = type(self).__name__, self.facts
        inputs = (q_BLHK, k_BMHK) if v_BMHV is None else (q_BLHK, k_BMHK, v_BMHV)
        if not all(isinstance(x, Tensor) for x in inputs):
            kinds = ", ".join(type(x).__name__ for x in inputs)
            raise DtypeError(f"{name} takes tensors, got {kinds}; torch.as_tensor(x) makes one of a NumPy array")
        if any(x.dim() != 4 for x in inputs):
            raise ShapeError(
                f"{name} takes (batch, length, heads, size) tensors, got {_shapes(inputs)}; x.unflatten(-1, (heads, -1)) splits heads"
            )
        dtype = q_BLHK.dtype
        if not dtype.is_floating_point or any(x.dtype != dtype for x in inputs):
            raise DtypeError(
                f"{name} takes floating-point tensors of one dtype, got {_shapes(inputs, dtypes=True)}; convert with .to(dtype)"
            )
        B, L, H, K = q_BLHK.shape
        M, G = k_BMHK.shape[1:3]
        if k_BMHK.shape[0] != B or k_BMHK.shape[3] != K or (v_BMHV is not None and v_BMHV.shape[:3] != (B, M, G)):
            raise ShapeError(
                f"{name}: batch, key size and key length must agree, got {_shapes(inputs)}; q and k share K, k and v share length and heads"
                f"{_order(inputs)}"
            )
        if H != G and not (G and H % G == 0):
            raise ShapeError(
                f"{name}: {H} query heads cannot share {G} key heads, got {_shapes(inputs)}; the second must divide the first, and tensors are "
                f"(batch, length, heads, size){_order(inputs)}"
            )
        if self.heads not in (None, H) or self.head_dim not in (None, K):
            size = "" if self.head_dim is None else f" of size {self.head_dim}"
            raise ShapeError(
                f"{name} was made for {'any number of' if self.heads is None else self.heads} heads{size}, got q_BLHK {tuple(q_BLHK.shape)}; "
                f"{name}.sized(heads={H}, head_dim={K}, length=…) fits{_order(inputs, self.heads)}"
            )
        if pattern.batch not in (1, B) or pattern.heads not in (1, H):
            raise ShapeError(f"{name}: `{pattern}` is for {pattern.batch} batch rows and {pattern.heads} heads, got {_shapes(inputs)}")
        if not self.supports(pattern):
            raise PatternNotSupported(f"{name} supports {self._supported()}, not `{pattern}`; SoftmaxAttention takes any pattern")
        if not facts.cross and L != M and state is None and not isinstance(pattern, at_positions):  # it has the query positions
            raise ShapeError(
                f"{name} attends within one sequence, so it needs as many queries as keys, got {_shapes(inputs)}; SoftmaxAttention takes both"
            )
        if state is not None:
            self._check_state(state, B)
        keys = M if state is None or not state.grows else state.length + M
        if self.max_length is not None and keys > self.max_length:
            raise ShapeError(
                f"{name} was made for up to {self.max_length} keys, got {keys}; make it with max_length={keys}, "
                "or use SoftmaxAttention, which takes any number"
            )
        if bias is not None and not facts.bias:
            raise BiasNotSupported(f"{name} has no scores that a bias could be added to; SoftmaxAttention has")
        if isinstance(bias, Tensor) and state is None:
            self._check_bias(bias, (B, H, L, M))
        if self.reads_gates or gates_BMHE is not None or query_gates_BLHE is not None:
            shapes = self.gate_shapes(q_BLHK, k_BMHK)
            self._check_gates("key", "gates_BMHE", gates_BMHE, shapes, dtype)
            self._check_gates("query", "query_gates_BLHE", query_gates_BLHE, shapes, dtype)

    def _check_state(self, state: State, batch: int) -> None:
        name, kind = type(self).__name__, self.facts.state
        if kind is None:
            raise StateNotSupported(f"{name} cannot stream: each query needs all keys at once; SoftmaxAttention can")
        if not isinstance(state, kind):
            raise StateNotSupported(
                f"{name} expects a {kind.__name__}, got a {type(state).__name__}; create it with attention.start(batch, pattern)"
            )
        if state.batch != batch:
            raise ShapeError(f"{name}: the state has {state.batch} rows, got a batch of {batch}; state.reorder(rows) changes its rows")

    def _check_gates(self, kind: str, argument: str, gates: Tensor | None, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        name, expected = type(self).__name__, shapes.get(argument)
        if expected is None and gates is not None:
            raise ShapeError(f"{name} reads no gates per {kind} token, got {argument}; leave it out")
        if expected is not None and (gates is None or gates.shape != expected):
            got = "nothing" if gates is None else tuple(gates.shape)
            raise ShapeError(
                f"{name} reads {expected[-1]} more numbers per {kind} token and head: expected {argument} of shape {expected}, got {got}; "
                "MultiHead projects them from x"
            )
        if gates is not None and gates.dtype != dtype:
            raise DtypeError(f"{name}: {argument} is {gates.dtype} and q_BLHK {dtype}; convert with .to(dtype)")

    def _check_bias(self, bias: Tensor, shape: tuple[int, ...]) -> None:
        try:
            fits = torch.broadcast_shapes(bias.shape, shape) == torch.Size(shape)
        except RuntimeError:
            fits = False
        if not fits or bias.dim() < 2:
            raise ShapeError(
                f"{type(self).__name__}: a bias must broadcast to (batch, heads, queries, keys) = {shape}, got {tuple(bias.shape)}"
            )
        if not bias.dtype.is_floating_point:
            raise DtypeError(
                f"{type(self).__name__}: a bias is added to scores, so it must be floating-point, got {bias.dtype}; "
                "a boolean mask is a pattern: keep(mask)"
            )

    def _supported(self) -> str:
        names = self.facts.patterns
        if "full" in names:
            return " and ".join(f"`{name}`" for name in names)
        return "`causal`" + "".join(f" and `causal & {name}`" for name in names if name != "causal")

    def _rows_cheap(self) -> bool:
        """True if the weights of one query cost less than those of all."""
        return self.facts.rows == "independent"


def _run_eagerly(attention: Attention, *arguments: Any) -> Tensor:
    """For torch.compile: what surrounds attention is compiled. Kernels are not: their loops over tiles would be unrolled, for one length."""
    out: Tensor = torch.compiler.disable(attention.forward)(*arguments)
    return out


_run_eagerly._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compiler.disable as a decorator would import the compiler here


def _export(
    attention: Attention,
    q_BLHK: Tensor,
    k_BMHK: Tensor,
    v_BMHV: Tensor,
    pattern: Pattern,
    bias: Tensor | Bias | None,
    state: State | None,
    gates_BMHE: Tensor | None,
    query_gates_BLHE: Tensor | None,
) -> Tensor:
    """For torch.export: the definition, in operations of PyTorch alone. Kernels choose their tiles by numbers, which an export does not have."""
    name = type(attention).__name__
    if state is not None:
        raise StateNotSupported(f"{name} is exported for whole sequences, not step by step; leave `state` out")
    if attention._observers:
        raise CaptureNotSupported(f"{name}: an export has no numbers to capture; leave the capture before exporting")
    try:
        attention._check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, None, gates_BMHE, query_gates_BLHE)
        L, M = q_BLHK.shape[1], k_BMHK.shape[1]
        call = Call(attention._within(pattern, M), bias, gates_BMHE, L, M, q_BLHK.device, query_gates_BLHE=query_gates_BLHE)
        return average(attention._weights(q_BLHK, k_BMHK, call), v_BMHV)
    except RegardError:
        raise
    except (RuntimeError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise NotSupported(
            f"{name} cannot be exported for these shapes, because what it does depends on numbers (PyTorch: {reason}); "
            "export it for one length, without dynamic_shapes, or take SoftmaxAttention"
        ) from error


def _order(inputs: tuple[Tensor, ...], heads: int | None = None) -> str:
    """A hint for tensors that would fit in the order of PyTorch's scaled_dot_product_attention: (batch, heads, length, size)."""
    q, k = (x.shape for x in inputs[:2])
    v = inputs[-1].shape
    fits = q[0] == k[0] == v[0] and q[3] == k[3] and k[1:3] == v[1:3] and bool(k[1]) and q[1] % k[1] == 0 and heads in (None, q[1])
    return "; if they are (batch, heads, length, size), pass x.transpose(1, 2), or call regard.sdpa, which takes that order" * fits


def _shapes(inputs: tuple[Tensor, ...], dtypes: bool = False) -> str:
    """q, k and v as an error message shows them."""
    return ", ".join(
        f"{name} {x.dtype if dtypes else tuple(x.shape)}" for name, x in zip(("q_BLHK", "k_BMHK", "v_BMHV"), inputs, strict=False)
    )

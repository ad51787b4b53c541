"""The contract of a mechanism: attention is a weighted average of values, and these are the weights.

    weights(q, k)      the definition: readable, any machine, slow           rows over queries, columns over keys
    forward(q, k, v)   the fast way, never forming L × M unless it must

**The law: `forward(q, k, v) == weights(q, k) @ v`**, outputs and gradients, in double precision. An approximation returns
the matrix it really uses, so the law stays exact. It gives the oracle, the picture and the explanation at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Literal, ParamSpec, Self

import torch
from torch import Tensor, nn

from ..errors import BiasNotSupported, DtypeError, PatternNotSupported, ShapeError, StateNotSupported
from ..kernels import Bias
from ..patterns import Both, Causal, Full, Pattern, begun, causal, full, placed, since
from ._state import State


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is true of a mechanism. Facts describe, and choose tests; they never steer the code of another class."""

    name: str
    year: int
    title: str  # of the paper
    paper: str  # arXiv number or venue
    formula: str
    time: str  # of one head, in the letters of the legend
    memory: str  # beside inputs and outputs
    patterns: Literal["any"] | tuple[str, ...] = "any"  # or rules it knows, and their conjunctions; without "full", each with causal
    causal: Literal["strict", "mask-only", "none"] = "strict"  # mask-only: statistics of the future leak in
    cross: bool | Literal["last"] = True  # queries and keys may be different sequences; "last": the queries are the last of the keys
    streaming: bool = True
    fixed_memory: bool = False  # going step by step, k and v are the whole memory each time; the state counts queries only
    normalised: bool = True  # every row that sees anything sums to one
    positional: bool = False  # the order of the keys matters
    random: bool = False
    bias: bool = True  # scores may be added to
    grouped: bool = True  # fewer key heads than query heads
    by_length: bool = False  # where it looks depends on how many keys there are, and padding counts


class Attention(nn.Module):
    """A mechanism: how much to look, and where.

    Shapes: q_BLHK, k_BMHK, v_BMHV → out_BLHV. k and v may have fewer heads than q where `facts.grouped`.
    Nothing is left on the module between two calls: what must be remembered is in `state`.

    A mechanism that wants more of each token than k and v, a gate or a step size, says how many numbers in `extra` and takes
    them as a further keyword, `extra_BMHE`, in `weights`, `forward` and `weights_of`; the others know no such keyword.
    """

    facts: ClassVar[Facts]
    extra: int = 0  # numbers a head wants of every key token beside k and v; MultiHead projects them from x as it projects k
    _made_of: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "_made_of", (args, options))  # what PyTorch's own would need set up first
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made with, by name: `type(mechanism)(**mechanism.settings)` is one like it, with parameters of its own."""
        args, options = self._made_of
        given = inspect.signature(type(self).__init__).bind(self, *args, **options)
        named = dict(list(given.arguments.items())[1:])
        for parameter in given.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        """One that fits `heads` heads of size `width` and up to `length` keys; most fit any."""
        return cls()

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        """The definition: weights_BHLM, zero where the pattern forbids."""
        raise NotImplementedError

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        """The weighted average out_BLHV. With `state`, over all that came before too, and the state goes on."""
        raise NotImplementedError

    def start(self, batch: int, pattern: Pattern = causal) -> State:
        """A fresh state for going step by step under `pattern`."""
        raise StateNotSupported(f"{type(self).__name__} cannot go step by step: every query needs all keys at once; SoftmaxAttention can")

    def start_over_memory(self, batch: int) -> State | None:
        """What to remember while queries come one by one and all keys are there from the beginning: mostly nothing, None."""
        if not self.facts.streaming and self.rows_apart:
            return None  # it cannot go on from a past, but here there is none
        state = self.start(batch, full)
        return None if state.grows else state

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        """The weights of some queries only. Mechanisms whose rows do not depend on each other save the work of the rest."""
        return self.weights(q_BLHK, k_BMHK, pattern, bias)[:, :, rows]

    @property
    def rows_apart(self) -> bool:
        """Whether a query's weights are the same whatever other queries there are: such mechanisms have a `weights_of` of their own."""
        return type(self).weights_of is not Attention.weights_of

    @property
    def reads_apart(self) -> bool:
        """Whether documents packed in one row are each read as if alone under `segments`: it takes any rule, and counts no places."""
        return self.facts.patterns == "any" and not self.facts.positional

    def within(self, pattern: Pattern) -> Pattern:
        """Where it looks when it may look where `pattern` says: a mechanism with a pattern of its own narrows it."""
        return pattern

    def check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        """Refuse by name what does not fit together or what this mechanism cannot do."""
        me, facts = type(self).__name__, self.facts
        given = (q_BLHK, k_BMHK) if v_BMHV is None else (q_BLHK, k_BMHK, v_BMHV)
        if any(x.dim() != 4 for x in given):
            raise ShapeError(
                f"{me} takes (batch, length, heads, size) tensors, got {_shapes(given)}; x.unflatten(-1, (heads, -1)) splits heads"
            )
        dtype = q_BLHK.dtype
        if not dtype.is_floating_point or any(x.dtype != dtype for x in given):
            raise DtypeError(f"{me} takes floating tensors of one type, got {_shapes(given, dtypes=True)}; convert with .to(dtype)")
        B, L, H, K = q_BLHK.shape
        b, M, G, k = k_BMHK.shape
        if b != B or k != K or (v_BMHV is not None and v_BMHV.shape[:3] != (B, M, G)):
            raise ShapeError(
                f"{me}: batch, key size and key length must agree, got {_shapes(given)}; q and k share K, k and v share length and heads"
            )
        if H != G and not (facts.grouped and G and H % G == 0):
            more = "; the second must divide the first" if facts.grouped else ""
            raise ShapeError(f"{me}: {H} query heads cannot share {G} key heads, got {_shapes(given)}{more}")
        if not isinstance(pattern, Pattern):
            raise PatternNotSupported(
                f"{me} takes a pattern, not {type(pattern).__name__}; wrap a boolean mask (True = may look) as keep(mask)"
            )
        if pattern.batch not in (1, B) or pattern.heads not in (1, H):
            raise ShapeError(f"{me}: `{pattern}` is for {pattern.batch} batch rows and {pattern.heads} heads, got {_shapes(given)}")
        if not self.knows(pattern):
            raise PatternNotSupported(f"{me} knows {self._known()}, not `{pattern}`; SoftmaxAttention takes any pattern")
        if not facts.cross and L != M and state is None and not isinstance(pattern, placed):  # it says where the queries stand
            raise ShapeError(
                f"{me} looks within one sequence, so it needs as many queries as keys, got {_shapes(given)}; SoftmaxAttention takes both"
            )
        if state is not None and not facts.streaming:
            self.start(B)  # raises, and says why
        if bias is not None and not facts.bias:
            raise BiasNotSupported(f"{me} has no scores that a bias could be added to; SoftmaxAttention has")
        if isinstance(bias, Tensor) and state is None:
            self._check_bias(bias, (B, H, L, M))

    def check_extra(self, k_BMHK: Tensor, extra_BMHE: Tensor | None) -> Tensor:
        """The extra numbers, refused by name where they are missing or do not fit the keys."""
        wanted, me = (*k_BMHK.shape[:3], self.extra), type(self).__name__
        if extra_BMHE is None or extra_BMHE.shape != wanted:
            got = "nothing" if extra_BMHE is None else tuple(extra_BMHE.shape)
            raise ShapeError(
                f"{me} wants {self.extra} more of every key token and head: pass extra_BMHE of shape {wanted}, got {got}; "
                "MultiHead makes it from x"
            )
        if extra_BMHE.dtype != k_BMHK.dtype:
            raise DtypeError(f"{me}: extra_BMHE is {extra_BMHE.dtype} and k_BMHK {k_BMHK.dtype}; convert with .to(dtype)")
        return extra_BMHE

    @classmethod
    def knows(cls, pattern: Pattern) -> bool:
        """Whether it can look where this pattern says."""
        known = cls.facts.patterns
        if known == "any":
            return True
        names = {_rule_name(part) for part in factors(pattern)}
        return names <= set(known) and ("full" in known or "causal" in names)

    def _known(self) -> str:
        names = self.facts.patterns
        if "full" in names:
            return " and ".join(f"`{name}`" for name in names)
        return "`causal`" + "".join(f" and `causal & {name}`" for name in names if name != "causal")

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
                f"{type(self).__name__}: a bias is added to scores, so it is a floating tensor, not {bias.dtype}; a boolean mask is a pattern: keep(mask)"
            )

    def extra_repr(self) -> str:
        return ""


def _shapes(given: tuple[Tensor, ...], dtypes: bool = False) -> str:
    """q, k and v as an error message shows them."""
    return ", ".join(
        f"{name} {x.dtype if dtypes else tuple(x.shape)}" for name, x in zip(("q_BLHK", "k_BMHK", "v_BMHV"), given, strict=False)
    )


def factors(pattern: Pattern) -> list[Pattern]:
    """The rules that must all allow a pair."""
    if isinstance(pattern, placed):
        return factors(pattern.rule)
    if isinstance(pattern, begun):  # a rule that tells keys apart counts from the beginning of each row
        parts = factors(pattern.rule)
        return [since(torch.tensor(pattern.first)), *(p if isinstance(p, Full | Causal) else begun(p, pattern.first) for p in parts)]
    return [*factors(pattern.left), *factors(pattern.right)] if isinstance(pattern, Both) else [pattern]


def _rule_name(pattern: Pattern) -> str:
    if isinstance(pattern, begun):
        return _rule_name(pattern.rule)
    return {Full: "full", Causal: "causal"}.get(type(pattern), type(pattern).__name__)


def bias_of(bias: Tensor | Bias | None, queries: int, keys: int, device: torch.device) -> Tensor | float:
    """A bias as something to add to scores_BHLM."""
    if bias is None:
        return 0.0
    return bias if isinstance(bias, Tensor) else bias.whole(queries, keys, device)


def pattern_rows(pattern: Pattern, rows: Tensor, queries: int, keys: int) -> Pattern:
    """The pattern as some of the queries see it."""
    if isinstance(pattern, Full):
        return pattern
    return placed(pattern.fit(queries, keys), rows + (keys - queries), torch.arange(keys, device=rows.device))


def bias_rows(bias: Tensor | Bias | None, rows: Tensor, queries: int, keys: int) -> Tensor | None:
    """The bias of some queries only."""
    if bias is None:
        return None
    if isinstance(bias, Tensor):
        return bias if bias.shape[-2] == 1 else bias[..., rows, :]
    return bias.tile(rows + keys - queries, torch.arange(keys, device=rows.device), *bias.tensors)


def share_heads(k_BMHK: Tensor, heads: int) -> Tensor:
    """Fewer key heads than query heads: head h reads head ⌊h·G/H⌋ of G."""
    return k_BMHK if k_BMHK.shape[2] == heads else k_BMHK.repeat_interleave(heads // k_BMHK.shape[2], 2)


def average(weights_BHLM: Tensor, v_BMHV: Tensor) -> Tensor:
    """The weighted average of values, out_BLHV: what every mechanism computes in the end."""
    v_BMHV = share_heads(v_BMHV, weights_BHLM.shape[1])
    return torch.einsum("bhlm,bmhv->blhv", weights_BHLM.to(v_BMHV.dtype), v_BMHV)


def softmax_where(scores_BHLM: Tensor, mask_BHLM: Tensor, sink_H: Tensor | None = None) -> Tensor:
    """Softmax over the allowed keys; a row that may look nowhere is zeros, with finite gradients."""
    scores_BHLM = scores_BHLM.masked_fill(~mask_BHLM, -torch.inf)
    top = scores_BHLM.detach().amax(-1, keepdim=True) if scores_BHLM.shape[-1] else scores_BHLM.new_zeros(*scores_BHLM.shape[:-1], 1)
    sink = None if sink_H is None else sink_H[:, None, None].to(scores_BHLM.dtype)
    if sink is not None:
        top = torch.maximum(top, sink.detach())
    top = top.masked_fill(top == -torch.inf, 0)
    e = (scores_BHLM - top).exp()
    z = e.sum(-1, keepdim=True)
    if sink is not None:
        z = z + (sink - top).exp()
    return e / z.masked_fill(z == 0, 1)


P = ParamSpec("P")


def unmixed(method: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Without autocast inside, whose products would be rounded to half precision: sums of many tokens do not stand that, and choices come out otherwise."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        first = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        with torch.autocast(first.device.type, enabled=False):
            return method(*args, **kwargs)

    return call

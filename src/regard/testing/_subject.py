"""Parts of the checks: mechanisms of one size, their inputs and patterns, and failures that name the fact to change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Attention
from ..attention.helpers import average, conjuncts, rule_name
from ..errors import BadConfig, RegardError
from ..kernels import force
from ..layers.spec import check_known
from ..patterns import Pattern, block, causal, full, keep, lengths, per_head, random_blocks, segments, since, tokens, window

B, L, M, H, G, K, V = 3, 13, 17, 4, 2, 7, 11  # all different: a swapped axis cannot pass by luck


class ContractError(AssertionError):
    """A mechanism does not do what the contract, or its own facts, say."""


class NotApplicable(Exception):
    """The facts of a mechanism say that a check does not concern it."""


Check = Callable[..., None]  # of a class, and the settings it is built with as keywords
CHECKS: dict[str, Check] = {}  # by name, in the order they are run


def check(name: str, *, paths: tuple[Any, ...] = (None,), sampling: bool = False) -> Callable[[Callable[[Subject], None]], Check]:
    """Add a check to `CHECKS`: run under each kernel path (None: as it comes), and with sampling on too where `sampling` is True."""

    def register(function: Callable[[Subject], None]) -> Check:
        def run_check(mechanism: type[Attention], **settings: Any) -> None:
            subject = Subject(mechanism, settings=settings)
            for sample in (False, True) if sampling and subject.samples else (False,):
                for path in paths:
                    with _conditions(path, sample):
                        function(Subject(mechanism, sample, settings))

        CHECKS[name] = run_check
        return run_check

    return register


@contextmanager
def _conditions(path: Any, sample: bool) -> Iterator[None]:
    """Equal random numbers for every check, and fresh memory that is NaN, so that reading it unwritten shows.

    Failures say under which kernel path and with which `sample` they happen.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]), nullcontext() if path is None else force(path):
            torch.manual_seed(0)
            yield
    except ContractError as error:
        where = [f"kernels.force({path!r})"] * (path is not None) + ["sample=True"] * sample
        raise ContractError(f"{error} (with {' and '.join(where)})" if where else str(error)) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class Subject:
    """A mechanism under test, with `settings` beside the sizes. Where it has a boolean attribute `sample`, that is set to `sample`."""

    def __init__(self, mechanism: type[Attention], sample: bool = False, settings: Mapping[str, Any] | None = None):
        self.mechanism, self.facts, self.name, self.sample = mechanism, mechanism.facts, mechanism.__name__, sample
        self.settings = settings or {}
        example = self.sized()
        self.gates, self.query_gates = example.gates, example.query_gates
        self.samples = isinstance(getattr(example, "sample", None), bool)
        self.widest: Pattern = full if self.supports("full") else causal  # under which it attends to most keys

    def supports(self, name: str) -> bool:
        return self.facts.patterns == "any" or name in self.facts.patterns

    def sized(self, heads: int = H, head_dim: int = K, length: int = M) -> Attention:
        """One of these sizes, with the settings."""
        attention = self.mechanism.sized(heads=heads, head_dim=head_dim, length=length)
        return self.mechanism(**{**attention.settings, **self.settings}) if self.settings else attention

    def alone(self, length: int = 80, dtype: torch.dtype = torch.float64) -> Attention:
        """A mechanism of the right size, its parameters no longer at symmetric starting points."""
        attention = self.sized(length=length).to(dtype)
        if self.samples:
            attention.sample = self.sample  # type: ignore[assignment]  # nn.Module declares attributes to be modules
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in attention.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
        return attention

    def build(self, length: int = 80, dtype: torch.dtype = torch.float64) -> Any:
        """Build one as `alone` does; one that reads gates takes them as further columns of q and k."""
        return gates_as_columns(self.alone(length, dtype))

    def tensors(
        self, queries: int = L, keys: int = M, *, kv_heads: int = H, batch: int = B, dtype: torch.dtype = torch.float64, grad: bool = True
    ) -> list[Tensor]:
        """q and k (with gates) and v; as many queries as keys where it attends within one sequence only."""
        queries = queries if self.facts.cross else keys
        sizes = (queries, H, K + self.query_gates), (keys, kv_heads, K + self.gates), (keys, kv_heads, V)
        return [torch.randn(batch, *size, dtype=dtype, requires_grad=grad) for size in sizes]

    def patterns(self, queries: int = L, keys: int = M) -> list[Pattern]:
        """Those it says it supports."""
        queries = queries if self.facts.cross else keys
        mask = torch.rand(B, H, queries, keys, generator=torch.Generator().manual_seed(2)) < 0.4
        every = {
            "full": full,
            "causal": causal,
            "lengths": lengths([keys, 3, 1]),
            "window": window(2),
            "tokens": causal & (window(1) | tokens(0)),
            "keep": keep(mask),
            "per_head": per_head(causal, full, window(3), block(4)),
            "random_blocks": random_blocks(1, 3, seed=4, per_head=H),
            "both": causal & lengths([keys, 5, 2]),
            "segments": segments(torch.arange(keys).expand(B, keys) // 3),
            "since": since(torch.tensor([0, keys // 2, keys - 1])),
        }
        supported = self.facts.patterns
        if supported == "any":
            return list(every.values())
        own = [every[name] if name == "causal" else self.widest & every[name] for name in supported if name in every]
        return own + ([every["both"]] if {"causal", "lengths"} <= set(supported) else [])


def check_settings(mechanism: type[Attention], settings: Mapping[str, Any]) -> None:
    """Refuse settings that the constructor does not take, and sizes, which the checks choose."""
    sizes = [name for name in ("heads", "head_dim", "max_length") if name in settings]
    if not sizes:
        check_known(mechanism, settings)
        example = Subject(mechanism, settings=settings).sized()
    if sizes or example.heads not in (None, H) or example.head_dim not in (None, K):
        raise BadConfig(
            f"{mechanism.facts.name} with {dict(settings)}: expected settings that leave the sizes open; the checks build it for {H} heads of "
            f"size {K}, at several lengths"
        )


class GatesAsColumns(nn.Module):
    """A mechanism that reads gates, given them as further columns of q and k: whatever a check does to those it does to gates too."""

    def __init__(self, inner: Attention):
        super().__init__()
        self.inner: Any = inner
        self.facts = inner.facts
        self.start, self.start_cross, self._within = inner.start, inner.start_cross, inner._within

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, *further: Any, **named: Any) -> Tensor:
        return self.inner.weights(q_BLHK[..., :K], k_BMHK[..., :K], *further, **self._gates(q_BLHK, k_BMHK), **named)

    def forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, *further: Any, **named: Any) -> Tensor:
        return self.inner(q_BLHK[..., :K], k_BMHK[..., :K], v_BMHV, *further, **self._gates(q_BLHK, k_BMHK), **named)

    def _gates(self, q_BLHK: Tensor, k_BMHK: Tensor) -> dict[str, Tensor | None]:
        return {
            "gates_BMHE": k_BMHK[..., K:] if self.inner.gates else None,
            "query_gates_BLHE": q_BLHK[..., K:] if self.inner.query_gates else None,
        }


def gates_as_columns(attention: Attention) -> Any:
    """The mechanism, to be called with q, k and v alone."""
    return GatesAsColumns(attention) if attention.reads_gates else attention


def reseed(attention: nn.Module) -> None:
    """Seed PyTorch's generator and those that the mechanism was given."""
    for part in attention.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(5)
    torch.manual_seed(5)


def run(attention: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    reseed(attention)
    return attention(*args, **kwargs)


def assert_law(attention: Any, inputs: list[Tensor], pattern: Pattern, bias: Tensor | None = None) -> None:
    """The law, forward(q, k, v) == weights(q, k) @ v: outputs, and gradients of every input and parameter.

    Args:
        attention: mechanism to check.
        inputs: q_BLHK, k_BMHK and v_BMHV, in float64.
        pattern: pattern that it supports.
        bias: added to the scores; None: nothing.
    """
    q, k, v = inputs
    rules = " & ".join(rule_name(rule) for rule in conjuncts(pattern))
    claim = f"supports `{rules}` according to facts.patterns, but forward != weights @ v under it"
    fast = run(attention, q, k, v, pattern, bias)
    reseed(attention)
    slow = average(attention.weights(q, k, pattern, bias), v)
    expect(fast.shape == slow.shape == (*q.shape[:3], v.shape[-1]), f"{claim}: shape {tuple(fast.shape)}, expected {tuple(slow.shape)}")
    expect_close(fast, slow, claim, atol=1e-10, rtol=1e-10)
    parts = {"q": q, "k": k, "v": v, "bias": bias, **dict(attention.named_parameters())}
    wanted = {name: x for name, x in parts.items() if x is not None and x.requires_grad}
    cotangent = torch.randn_like(fast)
    found = [
        torch.autograd.grad(out, list(wanted.values()), cotangent, allow_unused=True) if out.requires_grad else [None] * len(wanted)
        for out in (fast, slow)
    ]
    for name, one, two in zip(wanted, *found, strict=True):
        expect(one is not None or two is None, f"{claim}: the gradient of {name} is missing")
        one, two = (torch.zeros_like(wanted[name]) if x is None else x for x in (one, two))  # of a kernel: zeros, where there is none
        expect_close(one, two, f"{claim}: the gradient of {name} differs", atol=1e-10, rtol=1e-10)


def gradients(out: Tensor, inputs: list[Tensor], cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
    """Gradients of out · cotangent, or of its sum; zeros for what has no influence."""
    if not out.requires_grad:
        return tuple(map(torch.zeros_like, inputs))
    cotangent = torch.ones_like(out) if cotangent is None else cotangent
    return torch.autograd.grad(out, inputs, cotangent, allow_unused=True, materialize_grads=True)


def expect(holds: bool | Tensor, reason: str) -> None:
    if not holds:
        raise ContractError(reason)


def expect_close(actual: Tensor, expected: Tensor, reason: str, *, atol: float | None = None, rtol: float | None = None) -> None:
    """torch.testing.assert_close, with one line that says why it matters and how far apart they are."""
    try:
        torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)
    except AssertionError as error:
        apart = f"shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
        if actual.shape == expected.shape:
            apart = f"by up to {(actual.double() - expected.double()).abs().max():.2g}"
        raise ContractError(f"{reason} ({apart})") from error


def expect_error(error: type[RegardError], words: str, wrong: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """The call must raise `error`, whose message matches `words`."""
    try:
        function(*args, **kwargs)
    except error as caught:
        expect(re.search(words, str(caught)) is not None, f"{wrong}: {error.__name__} should mention {words!r}, got: {caught}")
        return
    except Exception as other:
        raise ContractError(f"{wrong}: expected {error.__name__}, got {type(other).__name__}: {other}") from other
    raise ContractError(f"{wrong}: expected {error.__name__}, and nothing was raised")

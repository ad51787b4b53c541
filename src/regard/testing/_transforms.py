"""Further uses of a mechanism: part of the inputs frozen, differentiated twice, compiled, transformed by torch.func; and what must
stay where it is, such as a NaN."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..attention import StepState
from ..attention.helpers import average
from ..errors import NotSupported
from ..patterns import Pattern, causal
from ._outputs import PATHS
from ._subject import B, H, K, L, M, Subject, V, assert_law, check, expect, expect_close, gradients, reseed, run

SOME = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))  # which of q, k and v need gradients


@check("law-more-queries", paths=PATHS, sampling=True)
def law_with_more_queries_than_keys(subject: Subject) -> None:
    """The first queries are before the first key."""
    if not subject.facts.cross:
        return
    for pattern in subject.patterns(M, L):
        assert_law(subject.build(), subject.tensors(M, L), pattern)


@check("empty", paths=PATHS, sampling=True)
def law_of_nothing(subject: Subject) -> None:
    """An empty batch, no queries, no keys: forward, weights, gradients and a step of a stream give tensors without elements, or zeros."""
    cross = subject.facts.cross
    for batch, queries, keys in ((0, M, M), (0, 0, 0), (B, 0, 0), *(((B, 0, M), (B, L, 0)) if cross else ())):
        for pattern in (subject.widest, causal) if subject.supports("causal") else (subject.widest,):
            inputs = subject.tensors(queries, keys, batch=batch)
            assert_law(subject.build(), inputs, pattern)
            if not keys:
                out = run(subject.build(), *inputs, pattern)
                expect((out == 0).all(), "without any key the output must be zeros: softmax_where gives them")
    if subject.facts.state in (None, StepState):
        return
    for batch, length in ((0, 3), (B, 0)):
        attention = subject.build()
        state = attention.start(batch)
        q, k, v = (x.detach() for x in subject.tensors(length, length, batch=batch))
        parts = [attention(q, k, v, causal, state=state) for _ in range(2)]
        wrong = f"a stream of {batch} rows and {length} tokens per step gives shapes {[tuple(x.shape) for x in parts]}, and is {state.length} long: return (batch, queries, heads, V), and call state.move"
        expect(all(x.shape == (batch, length, H, V) for x in parts) and state.length == 2 * length, wrong)


@check("frozen", paths=PATHS)
def gradients_of_some_inputs(subject: Subject) -> None:
    """Freeze some inputs, as with adapters: the gradients of the others are the same, in one pass and in a stream."""

    def in_one_pass(attention: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run(attention, q, k, v, subject.widest)

    def in_steps(attention: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state = attention.start(B)
        spans = (slice(0, 5), slice(5, 6), slice(6, 7), slice(7, M))
        return torch.cat([attention(q[:, at], k[:, at], v[:, at], causal, state=state) for at in spans], 1)

    streams = subject.facts.state not in (None, StepState)
    cases = [(way, values) for way in ((in_one_pass, in_steps) if streams else (in_one_pass,)) for values in (K, V)]
    for ways, values in cases:  # values as wide as keys go to PyTorch's own kernel
        attention, (q, k, v) = subject.build().requires_grad_(False), (x.detach() for x in subject.tensors(M if ways is in_steps else L))
        inputs = [q, k, v[..., :values]]
        expected = _gradients(attention, ways, inputs, (0, 1, 2))
        for some in SOME:
            found = _gradients(attention, ways, inputs, some)
            for n in some:
                wrong = f"the gradient of {'qkv'[n]} is another {ways.__name__.replace('_', ' ')} where only {', '.join('qkv'[i] for i in some)} need one: "
                wrong += "each gradient of a backward pass must not depend on which others are wanted"
                expect_close(found[n], expected[n], wrong, atol=1e-9, rtol=1e-9)


def _gradients(attention: Any, compute: Callable[..., Tensor], inputs: list[Tensor], some: tuple[int, ...]) -> dict[int, Tensor]:
    given = [x.clone().requires_grad_(n in some) for n, x in enumerate(inputs)]
    out = compute(attention, *given)
    return dict(zip(some, gradients(out.square().sum(), [given[n] for n in some]), strict=True))


@check("nan", paths=PATHS)
def a_nan_stays_in_its_row_and_head(subject: Subject) -> None:
    """A NaN or an infinity in one head of one batch row changes nothing elsewhere: outputs and gradients."""
    attention, inputs = subject.build(), [x.detach() for x in subject.tensors(M, M)]
    clean = _outputs_and_gradients(attention, inputs, subject.widest)
    for which, bad in ((0, "nan"), (1, "nan"), (2, "nan"), (0, "inf"), (1, "inf"), (2, "inf")):
        spoilt = [x.clone() for x in inputs]
        spoilt[which][1, 2, 1, 0] = float(bad)
        for name, one, two in zip(("output", *"qkv"), _outputs_and_gradients(attention, spoilt, subject.widest), clean, strict=True):
            one[1, :, 1], two = 0, two.clone()
            two[1, :, 1] = 0
            changed = name if name == "output" else f"gradient of {name}"
            expect_close(one, two, f"{bad} in {'qkv'[which]} of one head of one batch row changes the {changed} of others")


def _outputs_and_gradients(attention: Any, inputs: list[Tensor], pattern: Pattern) -> list[Tensor]:
    given = [x.clone().requires_grad_() for x in inputs]
    out = run(attention, *given, pattern)
    return [out.detach(), *gradients(out, given)]


Compute = Callable[[Tensor, Tensor, Tensor], Tensor]


def _fast_and_slow(subject: Subject, values: int = V) -> tuple[list[Tensor], Compute, Compute]:
    """Inputs, and a number from forward and from the definition; parameters are fixed."""
    attention = subject.build().requires_grad_(False)
    q, k, v = (x.detach() for x in subject.tensors(6, 6, batch=2))

    def fast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run(attention, q, k, v, subject.widest).sin().sum()

    def slow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        reseed(attention)
        return average(attention.weights(q, k, subject.widest), v).sin().sum()

    return [q, k, v[..., :values]], fast, slow


@check("second-derivatives", paths=PATHS)
def second_derivatives(subject: Subject) -> None:
    """Those of weights(q, k) @ v, or an error that says there are none; never wrong ones, and always those of the definition."""
    for values in (V, K):
        inputs, fast, slow = _fast_and_slow(subject, values)
        expected = _second_derivatives(slow, inputs)
        try:
            found = _second_derivatives(fast, inputs)
        except NotSupported:
            continue
        except RuntimeError as error:  # of PyTorch's own fused kernel
            expect(
                "not implemented" in str(error),
                f"differentiated twice it fails: {error}; decorate the backward pass with kernels.first_derivatives_only",
            )
            continue
        for name, one, two in zip("qkv", found, expected, strict=True):
            wrong = f"the second derivative with respect to {name} is not that of weights @ v: decorate the backward pass with "
            expect_close(one, two, wrong + "kernels.first_derivatives_only, or make it differentiable", atol=1e-8, rtol=1e-8)


def _second_derivatives(compute: Compute, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    given = [x.clone().requires_grad_() for x in inputs]
    first = torch.autograd.grad(compute(*given), given, create_graph=True, allow_unused=True, materialize_grads=True)
    total = torch.stack([g.square().sum() for g in first]).sum()
    return gradients(total, given) if total.requires_grad else first


@check("func")
def transforms_of_torch_func(subject: Subject) -> None:
    """torch.func.grad and vmap give what autograd and a loop give, or an error says that they cannot."""
    inputs, fast, _ = _fast_and_slow(subject)
    rows = [x.unsqueeze(1) for x in inputs]
    whole, alone = _gradients_of(fast, inputs), [_gradients_of(fast, [x[b] for x in rows]) for b in range(2)]
    grad = torch.func.grad(fast, (0, 1, 2))
    cases: dict[str, tuple[Callable[[], tuple[Tensor, ...]], list[Tensor]]] = {
        "grad": (lambda: grad(*inputs), whole),
        "vmap": (lambda: (torch.func.vmap(fast)(*rows),), [torch.stack([fast(*(x[b] for x in rows)) for b in range(2)])]),
        "vmap of grad": (lambda: torch.func.vmap(grad)(*rows), [torch.stack(two) for two in zip(*alone, strict=True)]),
    }
    for name, (compute, expected) in cases.items():
        try:
            found = compute()
        except NotSupported as error:
            expect(
                subject.name in str(error),
                f"torch.func.{name} is refused without the name of the mechanism: {error}; raise NotSupported with it",
            )
            continue
        for one, two in zip(found, expected, strict=True):
            expect_close(one, two, f"torch.func.{name} gives other numbers: use plain operators in _weights", atol=1e-9, rtol=1e-9)


def _gradients_of(compute: Compute, inputs: list[Tensor]) -> list[Tensor]:
    given = [x.clone().requires_grad_() for x in inputs]
    return list(gradients(compute(*given), given))


@check("compile")
def compiled(subject: Subject) -> None:
    """torch.compile changes nothing, outputs and gradients."""
    attention, inputs = subject.build(), [x.detach() for x in subject.tensors(6, 6, batch=2)]

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q.sin(), k, v, subject.widest).sin().sum()

    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute")  # PyTorch's, of what it resumes with after a graph break
        found = _gradients_of(torch.compile(layer, backend="eager"), inputs)
    for one, two in zip(found, _gradients_of(layer, inputs), strict=True):
        expect_close(one, two, "torch.compile gives other numbers: keep Python state out of _forward", atol=1e-9, rtol=1e-9)

"""The formula itself: the slow form that a mechanism may write beside the fast one, as the paper has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..patterns import full
from ._subject import K, L, M, NotApplicable, Subject, V, check, expect, expect_close, gradients, run

LONG = 70  # more than a chunk of the kernels


@check("reference")
def the_formula_is_that_of_the_reference(subject: Subject) -> None:
    """forward(q, k, v) == reference(q, k, v) in float64, outputs and gradients: over all keys, under `causal` where that is all it supports."""
    reference: Callable[..., Any] | None = getattr(subject.alone(), "reference", None)
    if reference is None:
        raise NotApplicable(
            "no reference: write `reference(self, q_BLHK, k_BMHK, v_BMHV)`, the paper's formula as a loop, to have it compared"
        )
    for queries, keys in ((L, M), (LONG, LONG)) if subject.widest is full else ((1, 1), (LONG, LONG)):
        attention, (q, k, v) = subject.alone(LONG), subject.tensors(queries, keys, batch=2)
        inputs = {"q_BLHK": q[..., :K], "k_BMHK": k[..., :K], "v_BMHV": v}
        shapes = attention.gate_shapes(inputs["q_BLHK"], inputs["k_BMHK"])
        inputs |= {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
        inputs = {name: x.detach().requires_grad_() for name, x in inputs.items()}
        fast, slow = run(attention, **inputs, pattern=subject.widest), attention.reference(**inputs)  # type: ignore[operator]
        _expect_same(attention, inputs, fast, slow)


def _expect_same(attention: torch.nn.Module, inputs: dict[str, Tensor], fast: Tensor, slow: Tensor) -> None:
    queries = inputs["q_BLHK"].shape[:3]
    wrong = f"reference gives {tuple(slow.shape)} of {slow.dtype}: return out_BLHV, {(*queries, V)}, in the dtype of v"
    expect(slow.shape == (*queries, V) and slow.dtype == torch.float64, wrong)
    expect_close(fast, slow, "forward is not what `reference` computes: one of the two formulas is wrong", atol=1e-9, rtol=1e-9)
    wanted = inputs | dict(attention.named_parameters())
    cotangent = torch.randn(fast.shape, dtype=fast.dtype)
    found = [gradients(out, list(wanted.values()), cotangent) for out in (fast, slow)]
    for name, one, two in zip(wanted, *found, strict=True):
        wrong = f"the gradient of {name} is not that of `reference`: differentiate the same formula, and detach nothing in either"
        expect_close(one, two, wrong, atol=1e-8, rtol=1e-8)

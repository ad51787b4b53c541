"""Precision and derivatives: helpers of every kernel, in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from ..errors import NotSupported

LOG2E = math.log2(math.e)  # exp(x) = exp2(x · LOG2E): a power of two costs half as much on a CPU, and a tenth where it underflows

P = ParamSpec("P")
R = TypeVar("R")


def no_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: disable autocast inside. Long sums lose too much in half precision, and top-k choices change.

    Args:
        function: function to wrap.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next((x.device.type for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return call


def first_derivatives_only(backward: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a backward pass without one of its own: no graph is recorded inside, and asking for one is an error.

    PyTorch's `once_differentiable` raises only if the engine reaches its error node, which is not connected to the inputs: with
    `torch.autograd.grad` second derivatives were silently incomplete.

    Args:
        backward: backward pass of a `torch.autograd.Function`.
    """

    @wraps(backward)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotSupported(
                "kernels of regard have first derivatives only, and create_graph=True asks for second ones; the definition of attention has "
                "them: regard.attention.helpers.average(attention.weights(q, k, pattern), v)"
            )
        with torch.no_grad():
            return backward(*args, **kwargs)

    return call


def inside_transform() -> bool:
    """Return whether a transform of torch.func (grad, vmap, jvp …) is running; autograd functions written for speed do not work there."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def accumulation_dtype(like: Tensor | torch.dtype) -> torch.dtype:
    """The dtype to sum in: float32, or wider where the input is.

    Args:
        like: a tensor, or its dtype.
    """
    return torch.promote_types(like.dtype if isinstance(like, Tensor) else like, torch.float32)


def float32_or_wider(x: Tensor) -> Tensor:
    """x in its accumulation dtype.

    Args:
        x: floating-point tensor.

    Shape: x → x.
    """
    return x.to(accumulation_dtype(x))

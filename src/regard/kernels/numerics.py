"""What every kernel says about precision, in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

LOG2E = math.log2(math.e)  # exp(x) = exp2(x · LOG2E): a power of two costs half as much on a CPU, and a tenth where it underflows

P = ParamSpec("P")
R = TypeVar("R")


def no_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: disable autocast inside. Long sums lose too much in half precision, and top-k choices change."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next((x.device.type for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return call


def accumulation_dtype(like: Tensor | torch.dtype) -> torch.dtype:
    """The dtype to sum in: float32, or wider where the input is."""
    return torch.promote_types(like.dtype if isinstance(like, Tensor) else like, torch.float32)


def float32_or_wider(x: Tensor) -> Tensor:
    """x in its accumulation dtype."""
    return x.to(accumulation_dtype(x))

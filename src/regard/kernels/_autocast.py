"""Kernels choose their own precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def uncast(kernel: Callable[P, R]) -> Callable[P, R]:
    """The same with autocast off: it would round the products inside, and so the sums, to half precision."""

    @wraps(kernel)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next((x.device.type for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return kernel(*args, **kwargs)

    return alone

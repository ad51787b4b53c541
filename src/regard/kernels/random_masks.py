"""Dropout with cheap random numbers: four of them from every 64 random bits.

    y = x ∘ m / (1 − p),    m = 1 with probability 1 − p

PyTorch draws one number per element on one core, which makes dropout the most expensive elementwise operation on a CPU. Here 16 bits
decide an element, so p is exact to 1/65,536; the bits come from NumPy's SFC64, seeded by one draw of PyTorch's generator, and the mask is
stored as bytes (multiplying by bytes is three times as fast as by booleans). 2,050 × 256 elements on two AVX2 cores: forward pass 4.5 ms
in PyTorch, 0.6 ms here, of which 0.3 are the random bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .numerics import first_derivatives_only


def dropout(x: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    """x with each element zeroed with probability p, the others scaled by 1/(1 − p).

    Args:
        x: any tensor.
        p: probability of zeroing an element.
        generator: random number generator; None: PyTorch's global one.

    Shape: x → out, elementwise.
    """
    level = round(p * 65536)
    if level <= 0 or x.numel() == 0:
        return x
    if level >= 65536:
        return x * 0
    if not x.is_cpu and generator is None:
        return torch.nn.functional.dropout(x, p)
    if not x.is_cpu:
        assert generator is not None
        kept = torch.empty(x.shape, dtype=x.dtype, device=generator.device).bernoulli_(1 - p, generator=generator)
        return x * kept.div_(1 - p).to(x.device)
    return _Dropout.apply(x, keep_mask(x.shape, level, generator), 65536 / (65536 - level))  # type: ignore[no-untyped-call]


def keep_mask(shape: torch.Size, level: int, generator: torch.Generator | None = None) -> Tensor:
    """Bytes: 0 with probability level / 65,536, else 1."""
    seed = int(torch.randint(2**62, (), generator=generator))
    bits = torch.from_numpy(np.random.SFC64(seed).random_raw(-(-shape.numel() // 4)).view(np.int16))
    return torch.ge(bits[: shape.numel()], level - 32768, out=torch.empty(shape.numel(), dtype=torch.uint8)).view(shape)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return torch.mul(x, mask).mul_(scale)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return torch.mul(d_out, mask).mul_(ctx.scale), None, None

"""Random numbers for tensors on any device.

A generator of the CPU draws on the CPU, and what it has drawn is moved: so a seed gives the same samples on every device, and the CPU does not wait for
the device. Without a generator numbers are drawn where they are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uniform(shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Numbers from [0, 1), with the dtype and on the device of another tensor.

    Args:
        shape: shape of the result.
        like: tensor whose dtype and device the result has.
        generator: random number generator of any device; None: PyTorch's global one.

    Shape: → out, of this shape.
    """
    return torch.rand(shape, generator=generator, dtype=like.dtype, device=_place(like, generator)).to(like.device)


def normal(shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Numbers from N(0, 1), with the dtype and on the device of another tensor.

    Args:
        shape: shape of the result.
        like: tensor whose dtype and device the result has.
        generator: random number generator of any device; None: PyTorch's global one.

    Shape: → out, of this shape.
    """
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=_place(like, generator)).to(like.device)


def choose(p_BN: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index per row, n with probability p_n / Σ p: what `torch.multinomial` draws from the same generator.

    The largest p_n / e_n with e from an exponential distribution is such an index.

    Args:
        p_BN: probabilities, not all 0.
        generator: random number generator of any device; None: PyTorch's global one.

    Shape: p_BN → index_B.
    """
    drawn_BN = torch.empty(p_BN.shape, dtype=p_BN.dtype, device=_place(p_BN, generator)).exponential_(generator=generator)
    return (p_BN / drawn_BN.to(p_BN.device)).argmax(-1)


def _place(like: Tensor, generator: torch.Generator | None) -> torch.device:
    return like.device if generator is None else generator.device

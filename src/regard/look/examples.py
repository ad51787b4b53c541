"""A mechanism as something to look at: its weights on a small input on which different mechanisms look different."""

from __future__ import annotations

import torch

from ..attention import Attention
from ..errors import NotSupported, PatternNotSupported, RegardError, ShapeError
from ..patterns import causal, full
from ._capture import capture
from .maps import Maps

LONGEST = 200  # tokens; beyond that neither a terminal nor a glance holds the picture


def example(mechanism: type[Attention], length: int = 12, seed: int = 0) -> Maps:
    """The weights of one head, of a mechanism that fits `length` tokens; `causal` where the mechanism knows it.

    Keys equal queries, and the sequence repeats after half its length, so a mechanism that compares content shows two lines.
    """
    if not 2 <= length <= LONGEST:
        raise ShapeError(f"length={length}: expected 2 to {LONGEST}")
    width = 8
    with torch.random.fork_rng(devices=[]):  # the parameters of a mechanism are drawn from the global generator
        torch.manual_seed(seed)
        attention = mechanism.sized(heads=1, head_dim=width, length=length).eval()
        half = torch.randn(1, (length + 1) // 2, 1, width)
        x_BLHK = torch.cat([half, half], 1)[:, :length] * 1.5
        gates = {name: torch.randn(shape) for name, shape in attention.gate_shapes(x_BLHK, x_BLHK).items()}
        reasons: list[Exception] = []
        for pattern in (causal, full):
            try:
                with torch.no_grad(), capture(attention) as maps:
                    attention(x_BLHK, x_BLHK, x_BLHK, pattern, **gates)
                names = [f"{n % len(half[0]) + 1}" for n in range(length)]
                return maps.label(names, names)
            except (RegardError, NotImplementedError) as error:
                reasons.append(error)
    why = next((error for error in reasons if not isinstance(error, PatternNotSupported)), reasons[-1])
    raise NotSupported(f"{mechanism.__name__} has no example to draw: {why}")

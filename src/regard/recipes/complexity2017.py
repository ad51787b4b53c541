"""The measured cost of a layer: attention grows with the square of the length, recurrence and convolution with the length.

Paper: Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, table 1: n²·d, n·d², k·n·d² per layer.
Run:   regard run complexity2017        Takes: about half a minute; nothing is trained.

One layer of width 64, batch 1, forward pass, one thread, at lengths 64 to 8,192, the fastest of seven. The exponent is that between
the third longest and the longest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..layers import MultiHead
from ._engine import Claim, Curves, Recipe, RecipeFacts, between, measured
from ._engine.variants import milliseconds

WIDTH, KERNEL, LENGTHS = 64, 3, (64, 256, 1024, 2048, 4096, 8192)


class Timed:
    """Milliseconds of one layer at each length, and the exponent of their growth."""

    def __init__(self, make: Callable[[], Callable[[Tensor], object]]):
        self.make = make

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        layer, times = self.make(), {}
        for length in LENGTHS:
            times[length] = milliseconds(partial(layer, torch.randn(1, length, WIDTH)), repeats=7)
        first, last = LENGTHS[-3], LENGTHS[-1]
        exponent = math.log(times[last] / times[first]) / math.log(last / first)
        return {"exponent": exponent, **{f"ms, length {length}": ms for length, ms in times.items()}}


def convolution() -> Callable[[Tensor], object]:
    layer = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2)
    return lambda x_BLD: layer(x_BLD.transpose(1, 2))


def exponent(name: str, low: float, high: float) -> Claim:
    text = f"{name}: the exponent of the time in the length is between {low} and {high}"
    return between(text, low, high, (name, "exponent"), kind="control", source="table 1")


recipe = Recipe(
    facts=RecipeFacts("complexity2017", 2017, "Attention is all you need", "arXiv:1706.03762", "about half a minute"),
    question="How does the cost of a layer grow with the length of the sequence?",
    variants={
        "self-attention": Timed(lambda: MultiHead(WIDTH, heads=1).eval()),
        "recurrent": Timed(lambda: nn.GRU(WIDTH, WIDTH, batch_first=True).eval()),
        "convolution": Timed(convolution),
    },
    claims=(
        exponent("self-attention", 1.6, 2.3),
        exponent("recurrent", 0.8, 1.3),
        exponent("convolution", 0.5, 1.4),
        Claim(
            "at 8,192 tokens, 128 times the width, attention costs more than convolution",
            measured("self-attention", "ms, length 8192") - measured("convolution", "ms, length 8192") >= 0,
            kind="control",
            source="table 1",
        ),
    ),
    pictures=(Curves(metric="ms", file="cost", x="length", y="milliseconds", title="One layer of width 64, forward pass", log="xy"),),
)

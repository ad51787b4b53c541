"""The cost of a layer, measured: attention grows with the square of the length, recurrence and convolution with the length.

Paper: Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, table 1: n²·d, n·d², k·n·d² per layer.
Run:   regard run complexity2017        Takes: about half a minute; nothing is trained.

One layer of width 64, batch 1, forward, one thread, at lengths 64 to 8,192, the best of seven. The exponent is that between
the third longest and the longest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ..layers import MultiHead
from ._base import Claim, Figures, Recipe, RecipeFacts
from ._pictures import lines

WIDTH, KERNEL, LENGTHS = 64, 3, (64, 256, 1024, 2048, 4096, 8192)


class Timed:
    """Milliseconds of one layer at each length, and the exponent of their growth."""

    def __init__(self, make: Callable[[], Callable[[Tensor], object]]):
        self.make = make

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        layer, figures = self.make(), {}
        with torch.inference_mode(), one_thread():
            for length in LENGTHS:
                x_BLD = torch.randn(1, length, WIDTH)
                layer(x_BLD)
                seconds = []
                for _ in range(7):
                    start = time.perf_counter()
                    layer(x_BLD)
                    seconds.append(time.perf_counter() - start)
                figures[f"ms at {length}"] = min(seconds) * 1e3
        ends = LENGTHS[-3], LENGTHS[-1]
        figures["exponent"] = math.log(figures[f"ms at {ends[1]}"] / figures[f"ms at {ends[0]}"]) / math.log(ends[1] / ends[0])
        return figures


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine would be measured instead of the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def convolution() -> Callable[[Tensor], object]:
    layer = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2)
    return lambda x_BLD: layer(x_BLD.transpose(1, 2))


def curves(figures: Figures, out: Path) -> Path:
    points = {name: {length: figures[name, f"ms at {length}"] for length in LENGTHS} for name in figures.seen}
    return lines(out / "cost.png", points, x="length", y="milliseconds", title="One layer of width 64, forward", logarithmic="xy")


def exponent(name: str, low: float, high: float) -> Claim:
    return Claim(
        f"{name}: the exponent of the time in the length lies between {low} and {high}",
        lambda f: low <= f[name, "exponent"].low and f[name, "exponent"].high <= high,
        lambda f: str(f[name, "exponent"]),
    )


recipe = Recipe(
    facts=RecipeFacts(
        name="complexity2017",
        year=2017,
        title="Attention is all you need",
        paper="arXiv:1706.03762",
        takes="half a minute on two CPU cores",
    ),
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
            lambda f: f["self-attention", "ms at 8192"].low > f["convolution", "ms at 8192"].high,
            lambda f: f"{f['self-attention', 'ms at 8192']} against {f['convolution', 'ms at 8192']} ms",
        ),
    ),
    pictures=(curves,),
)

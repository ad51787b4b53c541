"""Scales, from a weight to a shade: what the darkest shade of a picture stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import UnknownName

ScaleName = Literal["row", "global", "percentile", "log"]

PERCENTILE = 95.0  # of non-zero weights; those above it are all darkest
DECADES = 6.0  # at most, of a logarithmic scale
NOISE = 1e-6  # of the largest weight: a row of less than this is blank, not scaled up
SAMPLE = 2**20  # weights of which a percentile is computed; torch.quantile takes no more than 2**24


@dataclass(frozen=True)
class Scale:
    """Shades are numbers from 0 (blank) to 1 (darkest), negative for negative weights.

    | name | the darkest shade is |
    |---|---|
    | row | the largest weight of each row. Row 0 of a causal map is always 1.0, and would leave the others blank |
    | global | the largest weight of all that is shown |
    | percentile | the 95th percentile of the non-zero weights of all that is shown, and all above |
    | log | the largest weight of all that is shown; blank is a tenth of the first percentile, or a millionth of the largest |

    Args:
        name: row, global, percentile or log.
    """

    name: ScaleName
    top: float  # the weight of the darkest shade; of "row": the largest of all
    low: float  # log: the weight that is blank; row: the smallest of the rows' largest weights

    @classmethod
    def fit(cls, name: ScaleName, weights: Sequence[Tensor]) -> Scale:
        """The scale of matrices (…, rows, keys) that are shown together."""
        if name not in get_args(ScaleName):
            raise UnknownName("scale", str(name), get_args(ScaleName))
        sizes = [w.abs() for w in weights if w.numel()]
        top = max((float(size.max()) for size in sizes), default=0.0)
        if name == "row":
            rows = torch.cat([size.amax(-1).flatten() for size in sizes]) if sizes else torch.zeros(0)
            return cls(name, top, float(rows.where(rows > NOISE * top, top).min()) if len(rows) else 0.0)
        if name == "percentile":
            return cls(name, _percentile(sizes, PERCENTILE) or top, 0.0)
        if name == "log":
            return cls(name, top, max(_percentile(sizes, 1.0) / 10, top * 10**-DECADES))
        return cls(name, top, 0.0)

    def shades(self, weights: Tensor) -> Tensor:
        """Shades of a matrix (…, rows, keys)."""
        if not self.top or not weights.numel():
            return torch.zeros_like(weights)
        if self.name == "log":
            share = 1 - (self.top / weights.abs().clamp(min=self.low)).log() / math.log(self.top / self.low)
            return share.clamp(0, 1) * weights.sign()
        if self.name == "row":
            largest = weights.abs().amax(-1, keepdim=True)
            return (weights / largest).where(largest > NOISE * self.top, 0.0)
        return (weights / self.top).clamp(-1, 1)

    def ticks(self, signed: bool) -> list[tuple[float, str]]:
        """Shades and the weights that they stand for; of "row", shares of the row's largest weight."""
        if self.name == "log" and self.top:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.top)) + 1)
            weights = [self.low, *(10.0**n for n in decades), self.top]
            shades = [float(shade) for shade in self.shades(torch.tensor(weights, dtype=torch.float64))]
            # neither ends nor decades closer together than their labels are high
            kept = [n for n, shade in enumerate(shades) if n in (0, len(shades) - 1) or min(shade, 1 - shade) > 0.06]
            ticks = [(shades[n], f"{'≤ ' if n == 0 else ''}{weights[n]:.2g}") for n in kept]
            return (
                ticks
                if not signed
                else [*((-shade, f"-{label}") for shade, label in reversed(ticks[1:])), (0.0, f"± {self.low:.2g}"), *ticks[1:]]
            )
        top = 1.0 if self.name == "row" or not self.top else self.top
        return [(n / 4, f"{n / 4 * top:.2g}") for n in range(-4 if signed else 0, 5)]

    @property
    def legend(self) -> str:
        """Explain the shades, as the label of a colour bar."""
        match self.name:
            case "row":
                span = f"{self.top:.2g}" if f"{self.low:.2g}" == f"{self.top:.2g}" else f"{self.low:.2g} to {self.top:.2g}"
                return f"weight ÷ largest of its row ({span})"
            case "percentile":
                return f"weight, up to the {PERCENTILE:.0f}th percentile"
            case "log":
                return "weight (log scale)"
            case _:
                return "weight"

    @property
    def darkest(self) -> str:
        """Explain the darkest shade, in a line of text."""
        match self.name:
            case "row":
                return "the largest weight of its row, at the right"
            case "percentile":
                return f"{self.top:.3g} or more: the {PERCENTILE:.0f}th percentile"
            case "log":
                return f"{self.top:.3g}, blank = {self.low:.2g} or less: log scale"
            case _:
                return f"{self.top:.3g}"


def _percentile(sizes: list[Tensor], percent: float) -> float:
    """Percentile of the non-zero sizes; of at most a sample of them, evenly spaced."""
    every = torch.cat([size[size > 0].flatten() for size in sizes]) if sizes else torch.zeros(0)
    every = every[:: max(1, -(-len(every) // SAMPLE))]
    return float(every.float().quantile(percent / 100)) if len(every) else 0.0


def shaded(matrices: Sequence[Tensor], blocks: Sequence[tuple[int, int]], name: ScaleName) -> tuple[Scale, list[Tensor]]:
    """The scale of matrices that are shown together, and the shades of their blocks, (rows, keys) in size.

    A percentile is one of the blocks that are seen. Rows are scaled before they share a block.
    """
    if name == "row":
        scale = Scale.fit(name, matrices)
        return scale, [pool(scale.shades(x), *block) for x, block in zip(matrices, blocks, strict=True)]
    pooled = [pool(x, *block) for x, block in zip(matrices, blocks, strict=True)]
    scale = Scale.fit(name, pooled)
    return scale, [scale.shades(x) for x in pooled]


def pool(matrix: Tensor, down: int, across: int) -> Tensor:
    """One value per block of down × across: that of largest magnitude, so that thin lines stay visible."""
    if not matrix.numel() or max(down, across) <= 1:
        return matrix
    high, low = (nn.functional.max_pool2d(x[None], (down, across), ceil_mode=True)[0] for x in (matrix, -matrix))
    return high.where(high >= low, -low)

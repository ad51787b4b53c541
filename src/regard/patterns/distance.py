"""Rules on the distance between query and key alone: causal, windows, strides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..bounds import Count, Size
from ._base import Bounds, Pairs, Pattern, Span


class Distance(Pattern):
    """A rule on the distance d = i − j alone: the same at every position."""

    def near(self, d: Tensor) -> Tensor:
        """The rule on distances."""
        raise NotImplementedError

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        """The rule on intervals of distances, both ends included."""
        raise NotImplementedError

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.near(i - j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        return self.between(i.first - j.last, i.last - j.first)


@dataclass(frozen=True, repr=False)
class Causal(Distance):
    """No attention to later keys: j ≤ i."""

    def near(self, d: Tensor) -> Tensor:
        return d >= 0

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        return Bounds(high >= 0, low >= 0)

    def __repr__(self) -> str:
        return "causal"


@dataclass(frozen=True, repr=False)
class window(Distance):
    """Keys at most `radius` away, on either side: |i − j| ≤ radius.

    Args:
        radius: keys on either side.
    """

    radius: Count

    def near(self, d: Tensor) -> Tensor:
        return d.abs() <= self.radius

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        return Bounds((low <= self.radius) & (high >= -self.radius), (low >= -self.radius) & (high <= self.radius))

    def reach(self) -> tuple[int, int]:
        return self.radius, 0

    def listed(self, queries: int, keys: int) -> Pairs:
        """Pairs of a few neighbours: `edges(…) | window(0)` is a graph with self-loops."""
        i = torch.arange(keys - queries, keys).repeat_interleave(2 * self.radius + 1)
        j = i + torch.arange(-self.radius, self.radius + 1).repeat(queries)
        there = (j >= 0) & (j < keys)
        i, j = i[there], j[there]
        return Pairs(torch.zeros_like(i), torch.zeros_like(i), i, j)


@dataclass(frozen=True, repr=False)
class local_causal(Distance):
    """Keys at most `back` before the query, none after it: 0 ≤ i − j ≤ back.

    Args:
        back: keys before the query.
    """

    back: Count

    def near(self, d: Tensor) -> Tensor:
        return (d >= 0) & (d <= self.back)

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        return Bounds((low <= self.back) & (high >= 0), (low >= 0) & (high <= self.back))

    def reach(self) -> tuple[int, int]:
        return self.back, 0


@dataclass(frozen=True, repr=False)
class stride(Distance):
    """Every `step`-th key, counted from the query: (i − j) mod step = 0.

    Args:
        step: distance between neighbouring keys.
    """

    step: Size

    def near(self, d: Tensor) -> Tensor:
        return d % self.step == 0

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        some = high.div(self.step, rounding_mode="floor") * self.step >= low
        return Bounds(some, some & ((low == high) | (self.step == 1)))


@dataclass(frozen=True, repr=False)
class dilated(Distance):
    """A window with gaps: every `step`-th key, `radius` of them on either side.

    Args:
        radius: keys on either side, gaps not counted.
        step: distance between neighbouring keys.
    """

    radius: Count
    step: Size

    def near(self, d: Tensor) -> Tensor:
        return (d.abs() <= self.radius * self.step) & (d % self.step == 0)

    def between(self, low: Tensor, high: Tensor) -> Bounds:
        far = self.radius * self.step
        some, every = stride(self.step).between(low.clamp(min=-far), high.clamp(max=far))
        return Bounds(some & (low <= far) & (high >= -far), every & (low >= -far) & (high <= far))

    def reach(self) -> tuple[int, int]:
        return self.radius * self.step, 0


causal = Causal()

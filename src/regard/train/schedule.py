"""How large a step to take, as a function of how many were taken: each schedule is a few numbers and one formula.

Steps count from 1. `warmup` steps rise in a straight line to the peak, which is reached at step = warmup.

| schedule | after the warm-up |
|---|---|
| `Noam` | width^−½ · step^−½ (Vaswani et al. 2017, section 5.3) |
| `InverseSquareRoot` | peak · √(warmup / step): Noam with the peak given |
| `Cosine` | half a cosine from the peak to `floor` at `steps` |
| `Linear` | a straight line from the peak to `floor` at `steps` |
| `WSD` | the peak (stable), then over the last `decay` steps a straight line to `floor` |
| `Constant` | the peak |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..errors import BadConfig


class Schedule(ABC):
    """A learning rate for every step."""

    def lr(self, step: int) -> float:
        """The learning rate of this step; the first is step 1."""
        if step < 1:
            raise BadConfig(f"steps count from 1; a schedule was asked for step {step}")
        return self._lr(step)

    @abstractmethod
    def _lr(self, step: int) -> float: ...


def _positive(schedule: Schedule, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0 or not math.isfinite(number):
            raise BadConfig(f"{type(schedule).__name__}: {name} is {number}; expected a number above 0")


def _within(schedule: Schedule, warmup: int, steps: int) -> None:
    if not 0 <= warmup < steps:
        raise BadConfig(f"{type(schedule).__name__}: a warm-up of {warmup} does not fit into {steps} steps; take 1 to 10 % of them")


def _warm(warmup: int, step: int) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


@dataclass(frozen=True, kw_only=True)
class Noam(Schedule):
    """factor · width^−½ · min(step^−½, step · warmup^−3/2): the peak is factor / √(width · warmup)."""

    width: int = 512
    warmup: int = 4000
    factor: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, width=self.width, warmup=self.warmup, factor=self.factor)

    def _lr(self, step: int) -> float:
        return self.factor * min(1 / math.sqrt(step), step / (self.warmup * math.sqrt(self.warmup))) / math.sqrt(self.width)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Schedule):
    """peak · min(step / warmup, √(warmup / step)): no end is needed, so training may go on."""

    peak: float = 1e-3
    warmup: int = 1000

    def __post_init__(self) -> None:
        _positive(self, peak=self.peak, warmup=self.warmup)

    def _lr(self, step: int) -> float:
        return self.peak * min(step / self.warmup, math.sqrt(self.warmup / step))


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """From the peak to the floor along half a cosine; after `steps` it stays at the floor."""

    peak: float = 1e-3
    warmup: int = 0
    steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, peak=self.peak, steps=self.steps)
        _within(self, self.warmup, self.steps)

    def _lr(self, step: int) -> float:
        if step <= self.warmup:
            return self.peak * _warm(self.warmup, step)
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """From the peak to the floor in a straight line; after `steps` it stays at the floor."""

    peak: float = 1e-3
    warmup: int = 0
    steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, peak=self.peak, steps=self.steps)
        _within(self, self.warmup, self.steps)

    def _lr(self, step: int) -> float:
        if step <= self.warmup:
            return self.peak * _warm(self.warmup, step)
        left = max(0.0, (self.steps - step) / (self.steps - self.warmup))
        return self.floor + (self.peak - self.floor) * left


@dataclass(frozen=True, kw_only=True)
class WSD(Schedule):
    """Warm-up, stable, decay: the long middle part is the same for every end, so one run can be branched into several."""

    peak: float = 1e-3
    warmup: int = 0
    steps: int
    decay: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, peak=self.peak, steps=self.steps, decay=self.decay)
        _within(self, self.warmup + self.decay - 1, self.steps)

    def _lr(self, step: int) -> float:
        left = min(1.0, max(0.0, (self.steps - step) / self.decay))
        return self.peak * _warm(self.warmup, step) if left == 1 else self.floor + (self.peak - self.floor) * left


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak, after an optional warm-up."""

    peak: float = 1e-3
    warmup: int = 0

    def __post_init__(self) -> None:
        _positive(self, peak=self.peak)
        _within(self, self.warmup, self.warmup + 1)

    def _lr(self, step: int) -> float:
        return self.peak * _warm(self.warmup, step)


SCHEDULES: dict[str, type[Schedule]] = {
    "noam": Noam,
    "inverse_square_root": InverseSquareRoot,
    "cosine": Cosine,
    "linear": Linear,
    "wsd": WSD,
    "constant": Constant,
}

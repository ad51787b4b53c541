"""Learning-rate schedules: the learning rate as a function of the step.

Steps count from 1. The learning rate rises linearly over `warmup_steps` steps to its peak, reached at step = warmup_steps.

| schedule | after the warm-up |
|---|---|
| `Noam` | width^−½ · step^−½ (Vaswani et al. 2017, section 5.3) |
| `InverseSquareRoot` | lr · √(warmup_steps / step): Noam by its peak |
| `Cosine` | half a cosine from lr to `floor` at `steps` |
| `Linear` | linear from lr to `floor` at `steps` |
| `WSD` | lr (stable), then linear to `floor` over the last `decay` steps |
| `Constant` | lr |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..errors import BadConfig


class Schedule(ABC):
    """A learning rate for every step."""

    def at(self, step: int) -> float:
        """The learning rate of this step; the first is step 1."""
        if step < 1:
            raise BadConfig(f"step {step} of a schedule: steps count from 1")
        return self._lr(step)

    @abstractmethod
    def _lr(self, step: int) -> float: ...


def _positive(schedule: Schedule, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0 or not math.isfinite(number):
            raise BadConfig(f"{type(schedule).__name__}: {name} is {number}; expected a number above 0")


def _within(schedule: Schedule, warmup_steps: int, steps: int) -> None:
    if not 0 <= warmup_steps < steps:
        raise BadConfig(f"{type(schedule).__name__}: warmup_steps={warmup_steps} of {steps} steps; use 1 to 10 % of them")


def _warm(warmup_steps: int, step: int) -> float:
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0


@dataclass(frozen=True, kw_only=True)
class Noam(Schedule):
    """factor · width^−½ · min(step^−½, step · warmup_steps^−3/2): the peak is factor / √(width · warmup_steps)."""

    width: int = 512
    warmup_steps: int = 4000
    factor: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, width=self.width, warmup_steps=self.warmup_steps, factor=self.factor)

    def _lr(self, step: int) -> float:
        return self.factor * min(1 / math.sqrt(step), step / (self.warmup_steps * math.sqrt(self.warmup_steps))) / math.sqrt(self.width)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Schedule):
    """lr · min(step / warmup_steps, √(warmup_steps / step)): it needs no number of steps, so training can be extended."""

    lr: float = 1e-3
    warmup_steps: int = 1000

    def __post_init__(self) -> None:
        _positive(self, lr=self.lr, warmup_steps=self.warmup_steps)

    def _lr(self, step: int) -> float:
        return self.lr * min(step / self.warmup_steps, math.sqrt(self.warmup_steps / step))


@dataclass(frozen=True, kw_only=True)
class _Decay(Schedule):
    """From the peak to the floor; after `steps` it stays at the floor."""

    lr: float = 1e-3
    warmup_steps: int = 0
    steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, lr=self.lr, steps=self.steps)
        _within(self, self.warmup_steps, self.steps)

    def _lr(self, step: int) -> float:
        if step <= self.warmup_steps:
            return self.lr * _warm(self.warmup_steps, step)
        left = max(0.0, (self.steps - step) / (self.steps - self.warmup_steps))
        return self.floor + (self.lr - self.floor) * self._height(left)

    def _height(self, left: float) -> float:
        """The height above the floor, from 1 to 0, with this share of the steps left."""
        return left


class Cosine(_Decay):
    """From the peak to the floor along half a cosine; after `steps` it stays at the floor."""

    def _height(self, left: float) -> float:
        return (1 - math.cos(math.pi * left)) / 2


class Linear(_Decay):
    """From the peak to the floor in a straight line; after `steps` it stays at the floor."""


@dataclass(frozen=True, kw_only=True)
class WSD(_Decay):
    """Warm-up, stable, decay: the long middle part is the same for every end, so one run can be branched into several."""

    decay: int

    def __post_init__(self) -> None:
        _positive(self, lr=self.lr, steps=self.steps, decay=self.decay)
        _within(self, self.warmup_steps + self.decay - 1, self.steps)

    def _lr(self, step: int) -> float:
        left = min(1.0, max(0.0, (self.steps - step) / self.decay))
        return self.lr * _warm(self.warmup_steps, step) if left == 1 else self.floor + (self.lr - self.floor) * left


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak, after an optional warm-up."""

    lr: float = 1e-3
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _positive(self, lr=self.lr)
        _within(self, self.warmup_steps, self.warmup_steps + 1)

    def _lr(self, step: int) -> float:
        return self.lr * _warm(self.warmup_steps, step)


SCHEDULES: dict[str, type[Schedule]] = {
    "noam": Noam,
    "inverse-sqrt": InverseSquareRoot,
    "cosine": Cosine,
    "linear": Linear,
    "wsd": WSD,
    "constant": Constant,
}

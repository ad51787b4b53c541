"""Learning-rate schedules: the learning rate as a function of the step. `schedule_of` makes the one that `TrainOptions` name.

Steps count from 1. The learning rate rises linearly over `warmup_steps` steps to its peak, reached at step = warmup_steps.
Schedules with an end reach it at the step `steps`, or, if that is None, when the used share of the budget is 1: the clock of a training that
lasts some minutes then decides, however fast the machine turns out to be.

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
from typing import Any

from ..bounds import Bounded, Count, NonNegative, Positive, Size
from ..errors import BadConfig
from .options import ENDING, TrainOptions

DECAY = 0.2  # share of the steps in which a WSD schedule falls


class Schedule(Bounded, ABC):
    """A learning rate for every step."""

    def at(self, step: int, used: float = 0.0) -> float:
        """Return the learning rate of a step.

        Args:
            step: number of the step, from 1.
            used: used share of the budget, for schedules that end with it.
        """
        if step < 1:
            raise BadConfig(f"step {step} of a schedule: steps count from 1")
        return self._lr(step, used)

    @abstractmethod
    def _lr(self, step: int, used: float) -> float: ...


def _within(schedule: Schedule, warmup_steps: int, steps: int) -> None:
    if warmup_steps >= steps:
        name = type(schedule).__name__
        raise BadConfig(f"warmup_steps={warmup_steps} of {steps} steps with the schedule {name.lower()}; use 1 to 10 % of them")


def _warm(warmup_steps: int, step: int) -> float:
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0


@dataclass(frozen=True, kw_only=True)
class Noam(Schedule):
    """factor · width^−½ · min(step^−½, step · warmup_steps^−3/2): the peak is factor / √(width · warmup_steps)."""

    width: Size = 512  # width of the model
    warmup_steps: Size = 4000  # steps to the peak
    factor: Positive = 1.0  # multiplies all learning rates

    def _lr(self, step: int, used: float) -> float:
        return self.factor * min(1 / math.sqrt(step), step / (self.warmup_steps * math.sqrt(self.warmup_steps))) / math.sqrt(self.width)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Schedule):
    """lr · min(step / warmup_steps, √(warmup_steps / step)): it needs no number of steps, so training can be extended."""

    lr: Positive = 1e-3  # learning rate at the peak
    warmup_steps: Size = 1000  # steps to the peak

    def _lr(self, step: int, used: float) -> float:
        return self.lr * min(step / self.warmup_steps, math.sqrt(self.warmup_steps / step))


@dataclass(frozen=True, kw_only=True)
class _Decay(Schedule):
    """From the peak to the floor; after `steps` it stays at the floor."""

    lr: Positive = 1e-3  # learning rate at the peak
    warmup_steps: Count = 0  # steps to the peak
    steps: Size | None  # step at which the floor is reached; None: the end of the budget
    floor: NonNegative = 0.0  # learning rate at the end

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            _within(self, self.warmup_steps, self.steps)

    def _lr(self, step: int, used: float) -> float:
        if self.steps is None:
            return (self.floor + (self.lr - self.floor) * self._height(max(0.0, 1 - used))) * _warm(self.warmup_steps, step)
        if step <= self.warmup_steps:
            return self.lr * _warm(self.warmup_steps, step)
        left = max(0.0, (self.steps - step) / (self.steps - self.warmup_steps))
        return self.floor + (self.lr - self.floor) * self._height(left)

    def _height(self, left: float) -> float:
        """The height above the floor, from 1 to 0, with this share of the steps, or of the budget, left."""
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

    decay: Size | None  # steps in which it falls; None: the last fifth of the budget

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if (self.steps is None) != (self.decay is None):
            raise BadConfig(f"WSD with steps={self.steps} and decay={self.decay}; expected both, or neither")
        if self.steps is not None and self.decay is not None:
            _within(self, self.warmup_steps + self.decay - 1, self.steps)

    def _lr(self, step: int, used: float) -> float:
        left = (1 - used) / DECAY if self.steps is None or self.decay is None else (self.steps - step) / self.decay
        if left >= 1:
            return self.lr * _warm(self.warmup_steps, step)
        return self.floor + (self.lr - self.floor) * max(0.0, left)


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak, after an optional warm-up."""

    lr: Positive = 1e-3  # learning rate at the peak
    warmup_steps: Count = 0  # steps to the peak

    def _lr(self, step: int, used: float) -> float:
        return self.lr * _warm(self.warmup_steps, step)


SCHEDULES: dict[str, type[Schedule]] = {
    "noam": Noam,
    "inverse-sqrt": InverseSquareRoot,
    "cosine": Cosine,
    "linear": Linear,
    "wsd": WSD,
    "constant": Constant,
}


def schedule_of(options: TrainOptions, steps_per_epoch: int | None = None) -> Schedule:
    """Make the schedule that the options name. One with an end ends with the steps or epochs, or with the minutes if there is a time limit.

    Args:
        options: training options.
        steps_per_epoch: steps of an epoch, where `options.needs_epoch_length`.
    """
    total = options.total_steps(steps_per_epoch)
    warmup = options.with_warmup(total).warmup_steps
    ends: dict[str, Any] = {}
    if options.schedule in ENDING:
        if total is None and options.minutes is None:
            raise BadConfig(f"the schedule {options.schedule} of {options.epochs} epochs needs to know their length; give steps_per_epoch")
        ends = {"steps": total if options.minutes is None else None, "floor": options.min_lr}
        if options.schedule == "wsd":
            ends["decay"] = None if ends["steps"] is None else max(1, round(DECAY * ends["steps"]))
    build: Any = SCHEDULES[options.schedule]
    return build(lr=options.lr, warmup_steps=warmup, **ends)

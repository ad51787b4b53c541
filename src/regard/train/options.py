"""Training options as one flat dataclass: what the command line, the library and config.json share.

`TrainOptions.to_config` turns them into the nested `TrainConfig` that the loop takes. Tasks specialise them by default values only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from ..errors import BadConfig
from .config import Budget, Every, LoopOptions, TrainConfig
from .optim import OPTIMIZERS, OptimizerConfig
from .schedule import SCHEDULES, Schedule

STEPS = 3000  # where no budget is given


@dataclass(frozen=True, kw_only=True)
class _Optimization:
    """How long, with which optimizer and at which learning rates."""

    steps: int | None = None
    """Stop after this many optimizer steps; 3,000 if no other budget is given."""
    epochs: int | None = None
    """Stop after this many passes over the data."""
    minutes: float | None = None
    """Stop after this many minutes."""
    optimizer: Literal["adamw", "adam", "radam", "lamb", "muon", "adafactor"] = "adamw"
    """muon needs the fewest steps, adafactor the least memory (use --lr 1e-2), lamb is for very large batches."""
    lr: float = 2e-3
    """Peak learning rate."""
    schedule: Literal["inverse_square_root", "cosine", "linear", "constant"] = "inverse_square_root"
    """Learning rate after the warm-up; cosine and linear fall to --min-lr at the end of --steps or --epochs."""
    warmup_steps: int | None = 400
    """Warm-up steps; None: a tenth of all steps."""
    min_lr: float = 0.0
    """Learning rate at the end of a cosine or linear schedule."""
    weight_decay: float | None = None
    """Weight decay of matrices; the optimizer's own default if not given."""
    betas: tuple[float, float] | None = None
    """Decay rates of the optimizer's running averages; its own defaults if not given."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LoopOptions, _Optimization):
    """How long, with which optimizer and schedule, and on how many processes to train."""

    BUDGETS: ClassVar[tuple[str, ...]] = ("steps", "epochs", "minutes")
    RESUMABLE: ClassVar[tuple[str, ...]] = ("sharding", "compile", "tensorboard")  # may differ when resumed: the result is the same

    average: int = 5
    evaluate_every: int = 0
    """Steps between evaluations; 0: at the end of each epoch."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    save_every: int = 0
    """Steps between checkpoints; 0: at the end of each epoch (and every ten minutes)."""
    seeds: tuple[int, ...] = ()
    """Train once per seed, each in OUT/seed-N, and keep the best on validation; empty: once, with --seed."""

    def to_config(self, steps_per_epoch: int | None = None) -> TrainConfig:
        """The same for the loop. Schedules with an end need `steps` or `epochs`, and for epochs `steps_per_epoch`."""
        open_ended = self.minutes is None and self.epochs is None and self.steps is None
        steps = STEPS if open_ended else self.steps
        shared = {field.name: getattr(self, field.name) for field in fields(LoopOptions)}
        return TrainConfig(
            **shared | {"accumulate": self.for_processes().accumulate},
            budget=Budget(steps=steps, epochs=self.epochs, minutes=self.minutes),
            optimizer=self._optimizer(),
            schedule=self._schedule(self._total(steps, steps_per_epoch)),
            every=Every(log=self.log_every, evaluate=self.evaluate_every, save=self.save_every),
        )

    def for_processes(self) -> TrainOptions:
        """The same with at least one micro-batch for each process."""
        return self.replace(accumulate=max(self.accumulate, int(os.environ.get("WORLD_SIZE", "1"))))

    def replace(self, **changes: Any) -> TrainOptions:
        """A copy with some options changed."""
        return replace(self, **changes)

    @property
    def needs_steps(self) -> bool:
        """Whether `to_config` has to know the steps of an epoch."""
        return self.epochs is not None and (self.schedule in ("cosine", "linear") or self.warmup_steps is None)

    def _total(self, steps: int | None, steps_per_epoch: int | None) -> int | None:
        """All steps that the budget allows, if it says so."""
        by_epochs = None if self.epochs is None or steps_per_epoch is None else self.epochs * steps_per_epoch
        return min((each for each in (steps, by_epochs) if each is not None), default=None)

    def _optimizer(self) -> OptimizerConfig:
        given = {name: getattr(self, name) for name in ("weight_decay", "betas") if getattr(self, name) is not None}
        try:
            return OPTIMIZERS[self.optimizer](**given)
        except TypeError as wrong:
            raise BadConfig(f"{self.optimizer} takes no {' and no '.join(given)}; leave it out, or choose adamw") from wrong

    def _schedule(self, total: int | None) -> Schedule:
        if total is None and (self.schedule in ("cosine", "linear") or self.warmup_steps is None):
            raise BadConfig(f"the schedule {self.schedule} needs to know its end; give steps or epochs")
        warmup = (total or 0) // 10 if self.warmup_steps is None else self.warmup_steps
        ends = {"steps": total, "floor": self.min_lr} if self.schedule in ("cosine", "linear") else {}
        build: Any = SCHEDULES[self.schedule]
        return build(lr=self.lr, warmup_steps=warmup, **ends)

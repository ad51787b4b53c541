"""Everything about a training run that is a number or a name, in one value that goes to JSON and back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..errors import BadConfig, UnknownName
from .optim import OPTIMIZERS, Adafactor, AdamW, Muon, OptimizerConfig
from .schedule import SCHEDULES, InverseSquareRoot, Schedule

Sharding = Literal["none", "full"]
Precision = Literal["float32", "bfloat16", "auto"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop; whichever comes first. A run that ends by the clock is not the same twice."""

    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if not given:
            raise BadConfig("a budget needs an end: give steps, epochs or minutes")
        for name, value in given.items():
            if not value > 0:
                raise BadConfig(f"the budget's {name} are {value}; expected a number above 0")


@dataclass(frozen=True, kw_only=True)
class Every:
    """How many steps from one line, one evaluation, one checkpoint to the next; 0 means at the end of each epoch."""

    log: int = 10
    evaluate: int = 0
    save: int = 0
    minutes: float = 10.0  # a checkpoint at least this often, whatever the steps say

    def __post_init__(self) -> None:
        if self.log < 1 or self.evaluate < 0 or self.save < 0 or not self.minutes > 0:
            raise BadConfig(f"{self}: log must be at least 1, evaluate and save not below 0, minutes above 0")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train; what to train is the model, and on what the task."""

    budget: Budget
    optimizer: OptimizerConfig = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=InverseSquareRoot)
    every: Every = field(default_factory=Every)
    accumulate: int = 1  # batches to a step, over all processes together
    clip: float = 1.0  # longest gradient; 0 is no limit
    outlier: float = 0.0  # a step whose gradient is this many times longer than usual is skipped; 0 is never
    ema: float = 0.0  # running average of the weights: 0.999 looks back some thousand steps; 0 is none
    average: int = 0  # mean of the weights of the last so many evaluations, tried at the end; 0 is none
    patience: int = 0  # stop after so many evaluations without a better one; 0 is never
    keep: int = 2  # checkpoints on disk
    sharding: Sharding = "none"  # several processes: each has all weights, or "full": each has a part of them (`sharding.py`)
    precision: Precision = "float32"  # of products on the way forward; weights are float32. "auto": bfloat16 where safe and faster
    compile: bool = False  # the loss by torch.compile
    tensorboard: bool = False  # curves for TensorBoard beside metrics.jsonl
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {getattr(self, name)}, expected {expected}"
            for name, fits, expected in (
                ("accumulate", self.accumulate >= 1, "at least 1"),
                ("clip", self.clip >= 0, "0 or more"),
                ("outlier", self.outlier == 0 or self.outlier > 1, "0, or a factor above 1"),
                ("ema", 0 <= self.ema < 1, "0 or more, below 1"),
                ("average", self.average >= 0, "0 or more"),
                ("patience", self.patience >= 0, "0 or more"),
                ("keep", self.keep >= 1, "at least 1"),
                ("sharding", self.sharding in get_args(Sharding), " or ".join(get_args(Sharding))),
                ("precision", self.precision in get_args(Precision), " or ".join(get_args(Precision))),
            )
            if not fits
        ]
        if wrong:
            raise BadConfig("; ".join(wrong))
        if self.sharding == "full" and isinstance(self.optimizer, Adafactor | Muon):
            raise BadConfig(
                f"{type(self.optimizer).__name__} needs whole matrices, and sharding full cuts them apart; take AdamW, or sharding none"
            )
        if self.sharding == "full" and self.compile:
            raise BadConfig("compile does not go with sharding full, whose parts meet between layers; give up one of the two")

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and names."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        plain["optimizer"] = {"name": _name(OPTIMIZERS, self.optimizer), **plain["optimizer"]}
        plain["schedule"] = {"name": _name(SCHEDULES, self.schedule), **plain["schedule"]}
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> TrainConfig:
        """The value that `to_json` wrote."""
        plain = dict(plain)
        try:
            optimizer, schedule = dict(plain.pop("optimizer")), dict(plain.pop("schedule"))
            if "betas" in optimizer:
                optimizer["betas"] = tuple(optimizer["betas"])
            return cls(
                budget=Budget(**plain.pop("budget")),
                every=Every(**plain.pop("every")),
                optimizer=_class(OPTIMIZERS, "optimizer", optimizer.pop("name"))(**optimizer),
                schedule=_class(SCHEDULES, "schedule", schedule.pop("name"))(**schedule),
                **plain,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadConfig(f"this is not a training configuration: {error}") from error


def _name(known: dict[str, Any], value: object) -> str:
    for name, kind in known.items():
        if type(value) is kind:
            return name
    raise BadConfig(f"{type(value).__name__} has no name that a file could hold; known: {', '.join(known)}")


def _class(known: dict[str, Any], kind: str, name: str) -> Any:
    if name not in known:
        raise UnknownName(kind, name, known)
    return known[name]

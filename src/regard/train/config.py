"""The configuration of a training run: `TrainConfig`, one frozen value that goes to JSON and back, for the loop.

`TrainOptions` says the same in one flat dataclass, which the command line, the library and config.json share; `to_config` turns it into
the other. Tasks specialise it by default values only.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, get_args

from ..errors import BadConfig, UnknownName
from .optim import OPTIMIZERS, Adafactor, AdamW, Muon, OptimizerConfig
from .schedule import SCHEDULES, InverseSquareRoot, Schedule

STEPS = 3000  # where no budget is given
WARMUP = 400  # steps, at most, where the warm-up is not given
DECAY = 0.2  # share of the steps in which a WSD schedule falls
ENDING = ("cosine", "linear", "wsd")  # schedules that fall to a floor at the last step
Sharding = Literal["none", "full"]
Precision = Literal["float32", "bfloat16", "auto"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop, whichever comes first. A run that ends by the clock is not reproducible."""

    steps: int | None = None
    """Maximum number of optimizer steps."""
    epochs: int | None = None
    """Maximum number of epochs."""
    minutes: float | None = None
    """Maximum training time in minutes."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise BadConfig("the budget is empty; give steps, epochs or minutes")
        for name, value in given.items():
            if not value > 0:
                raise BadConfig(f"{name}={value} in the budget: expected a number above 0")

    def used(self, steps: int, epochs: float, minutes: float) -> float:
        """The used share, at most 1."""
        limits = ((steps, self.steps), (epochs, self.epochs), (minutes, self.minutes))
        return min(1.0, max(done / limit for done, limit in limits if limit is not None))

    def why_over(self, steps: int, epochs: int) -> str:
        """Which limit was reached, in words, or ""; the clock is the loop's."""
        if self.steps is not None and steps >= self.steps:
            return "all steps done"
        return "all epochs done" if self.epochs is not None and epochs >= self.epochs else ""


@dataclass(frozen=True, kw_only=True)
class Every:
    """Intervals in steps; 0 means at the end of each epoch."""

    log: int = 10
    """Steps between two lines of metrics.jsonl."""
    evaluate: int = 0
    """Steps between two evaluations; 0: at the end of each epoch."""
    save: int = 0
    """Steps between two checkpoints; 0: at the end of each epoch."""
    minutes: float = 10.0
    """Maximum minutes between two checkpoints."""

    def __post_init__(self) -> None:
        if self.log < 1 or self.evaluate < 0 or self.save < 0 or not self.minutes > 0:
            raise BadConfig(f"{self}: expected log ≥ 1, evaluate ≥ 0, save ≥ 0, minutes > 0")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """What `TrainConfig`, which the loop takes, and the flat `TrainOptions` have in common."""

    accumulate: int = 1
    """Micro-batches per optimizer step, over all processes together."""
    clip: float = 1.0
    """Maximum gradient norm; 0: no clipping."""
    outlier: float = 0.0
    """Skip steps whose gradient norm is this many times the usual one; 0: never."""
    ema: float = 0.0
    """Decay of an exponential moving average of the parameters, such as 0.999; 0: none."""
    average: int = 0
    """Also try the average of the parameters at the last N evaluations; 0: no."""
    patience: int = 0
    """Stop after this many evaluations without improvement; 0: never."""
    keep: int = 2
    """Checkpoints kept on disk."""
    seed: int = 0
    """Random seed of the initial parameters, the data order and dropout."""
    precision: Precision = "float32"
    """Forward-pass matmul precision; parameters stay float32. auto: bfloat16 where it is safe and faster."""
    sharding: Sharding = "none"
    """full: each process holds a shard of the parameters and of the optimizer state (FSDP); none: all of them."""
    deterministic: bool = False
    """Deterministic algorithms only: the same bits on every run on one machine with the same number of threads; may be slower."""
    compile: bool = False
    """Train with torch.compile: minutes to start; for large models with few batch shapes."""
    tensorboard: bool = False
    """Write TensorBoard event files beside metrics.jsonl."""
    wandb: bool = False
    """Log to Weights & Biases (its own environment variables choose project and mode)."""
    mlflow: bool = False
    """Log to MLflow (MLFLOW_TRACKING_URI chooses where)."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopOptions):
    """How to train; the model and the task are given to `fit`."""

    budget: Budget
    optimizer: OptimizerConfig = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=InverseSquareRoot)
    every: Every = field(default_factory=Every)

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
                f"{type(self.optimizer).__name__} needs whole matrices, which sharding='full' splits; use AdamW, or sharding='none'"
            )
        if self.sharding == "full" and self.compile:
            raise BadConfig("compile=True and sharding='full' cannot be combined; choose one of the two")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = asdict(self)
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
            raise BadConfig(f"not a training configuration: {error}") from error


def _name(known: dict[str, Any], value: object) -> str:
    for name, kind in known.items():
        if type(value) is kind:
            return name
    raise BadConfig(f"{type(value).__name__} has no name in a file; expected one of {', '.join(known)}")


def _class(known: dict[str, Any], kind: str, name: str) -> Any:
    if name not in known:
        raise UnknownName(kind, name, known)
    return known[name]


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
    schedule: Literal["inverse-sqrt", "cosine", "linear", "wsd", "constant"] = "inverse-sqrt"
    """Learning rate after the warm-up; cosine, linear and wsd (in its last fifth) fall to --min-lr at the end of --steps or --epochs."""
    warmup_steps: int | None = None
    """Warm-up steps; if not given, a tenth of the budget, at most 400 (translation: 60)."""
    min_lr: float = 0.0
    """Learning rate at the end of a cosine, linear or wsd schedule."""
    weight_decay: float | None = None
    """Weight decay of matrices; the optimizer's own default if not given."""
    betas: tuple[float, float] | None = None
    """Decay rates of the optimizer's running averages; its own defaults if not given."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LoopOptions, _Optimization):
    """Budget, optimizer, schedule and processes."""

    BUDGETS: ClassVar[tuple[str, ...]] = ("steps", "epochs", "minutes")
    RESUMABLE: ClassVar[tuple[str, ...]] = (  # may differ when resumed, and are recorded: they change neither the data nor the model
        "lr", "min_lr", "patience", "keep", "evaluate_every", "save_every", "log_every", "sharding", "compile", "tensorboard", "wandb",
        "mlflow", "device", "threads",
    )  # fmt: skip

    average: int = 5
    evaluate_every: int = 0
    """Steps between evaluations; 0: at the end of each epoch."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    save_every: int = 0
    """Steps between checkpoints; 0: at the end of each epoch (and every ten minutes)."""
    device: str = "cpu"
    """Where to train: cpu, cuda, cuda:1, mps."""
    threads: int = 0
    """CPU threads; 0: as many as there are free cores."""
    seeds: tuple[int, ...] = ()
    """Train once per seed, each in OUT/seed-N, and keep the best on validation; empty: once, with --seed."""

    def to_config(self, steps_per_epoch: int | None = None) -> TrainConfig:
        """The same for the loop. Schedules with an end need `steps` or `epochs`, and for epochs `steps_per_epoch`."""
        open_ended = self.minutes is None and self.epochs is None and self.steps is None
        steps = STEPS if open_ended else self.steps
        by_epochs = None if self.epochs is None or steps_per_epoch is None else self.epochs * steps_per_epoch
        shared = {field.name: getattr(self, field.name) for field in fields(LoopOptions)}
        return TrainConfig(
            **shared | {"accumulate": self.for_processes().accumulate},
            budget=Budget(steps=steps, epochs=self.epochs, minutes=self.minutes),
            optimizer=self._optimizer(),
            schedule=self._schedule(min((limit for limit in (steps, by_epochs) if limit is not None), default=None)),
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
        return self.epochs is not None and (self.schedule in ENDING or self.warmup_steps is None)

    def with_warmup(self, steps: int | None, at_most: int = WARMUP) -> TrainOptions:
        """The same with the warm-up decided, for a budget that will reach about this many steps; None: nobody knows how many."""
        if self.warmup_steps is not None:
            return self
        least = 1 if self.schedule == "inverse-sqrt" else 0  # which falls from the end of the warm-up
        return self.replace(warmup_steps=at_most if steps is None else max(least, min(at_most, steps // 10)))

    def _optimizer(self) -> OptimizerConfig:
        given = {name: getattr(self, name) for name in ("weight_decay", "betas") if getattr(self, name) is not None}
        try:
            return OPTIMIZERS[self.optimizer](**given)
        except TypeError as wrong:
            raise BadConfig(f"{self.optimizer} takes no {' and no '.join(given)}; leave it out, or choose adamw") from wrong

    def _schedule(self, total: int | None) -> Schedule:
        if total is None and self.schedule in ENDING:
            raise BadConfig(f"the schedule {self.schedule} needs to know its end; give steps or epochs")
        warmup = self.with_warmup(total).warmup_steps
        ends = {"steps": total, "floor": self.min_lr} if self.schedule in ENDING else {}
        if self.schedule == "wsd" and total is not None:
            ends["decay"] = max(1, round(DECAY * total))
        build: Any = SCHEDULES[self.schedule]
        return build(lr=self.lr, warmup_steps=warmup, **ends)

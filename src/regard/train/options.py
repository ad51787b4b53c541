"""`TrainOptions`: all numbers of a training, in one frozen value that the command line, the library, config.json and the loop share.

Tasks change defaults only. The optimizer is made of it by `optim.optimizer_of`, the schedule by `schedule.schedule_of`. Nothing here imports
PyTorch: `regard train TASK --help` reads this file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ..bounds import Bounded, Count, NonNegative, Positive, Probability, Seed, Size
from ..errors import BadConfig
from ..processes import world_size

STEPS = 3000  # where no budget is given
WARMUP = 400  # steps, at most, where the warm-up is not given
ENDING = ("cosine", "linear", "wsd")  # schedules that fall to a floor at the last step

OptimizerName = Literal["adamw", "adam", "radam", "lamb", "muon", "adafactor"]
ScheduleName = Literal["inverse-sqrt", "cosine", "linear", "wsd", "constant"]
Sharding = Literal["none", "full"]
Precision = Literal["float32", "bfloat16", "auto"]


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Bounded):
    """Training."""

    BUDGETS: ClassVar[tuple[str, ...]] = ("steps", "epochs", "minutes")
    RESUMABLE: ClassVar[tuple[str, ...]] = (  # may differ when resumed, and are recorded: they change neither the data nor the model
        "lr", "min_lr", "patience", "keep", "evaluate_every", "save_every", "log_every", "sharding", "compile", "tensorboard", "wandb",
        "mlflow", "device", "threads",
    )  # fmt: skip
    SECTIONS: ClassVar[dict[str, tuple[str, ...]]] = {  # of the help page; a test holds that each option is in one
        "Budget": ("steps", "epochs", "minutes", "patience"),
        "Optimizer": ("optimizer", "lr", "schedule", "warmup_steps", "min_lr", "weight_decay", "betas", "accumulate", "clip", "outlier"),
        "Averages, checkpoints and logs": (
            "average", "ema", "evaluate_every", "save_every", "keep", "log_every", "tensorboard", "wandb", "mlflow",
        ),
        "Device and reproducibility": ("device", "threads", "precision", "compile", "sharding", "seed", "seeds", "deterministic"),
    }  # fmt: skip

    steps: Size | None = None
    """Stop after this many optimizer steps (default: 3,000 if no other budget is given)."""
    epochs: Size | None = None
    """Stop after this many passes over the data."""
    minutes: Positive | None = None
    """Stop after this many minutes; a run that ends by the clock is not reproducible."""
    optimizer: OptimizerName = "adamw"
    """Optimizer: muon needs the fewest steps, adafactor the least memory (use --lr 1e-2), lamb is for very large batches."""
    lr: Positive = 2e-3
    """Peak learning rate."""
    schedule: ScheduleName = "inverse-sqrt"
    """Learning rate after the warm-up; cosine, linear and wsd (in its last fifth) fall to --min-lr at the end of the budget, by the clock with --minutes."""
    warmup_steps: Count | None = None
    """Warm-up steps (default: a tenth of the budget, at most 400, of some tasks fewer)."""
    min_lr: NonNegative = 0.0
    """Learning rate at the end of a cosine, linear or wsd schedule."""
    weight_decay: NonNegative | None = None
    """Weight decay of matrices (default: that of the optimizer)."""
    betas: tuple[Probability, Probability] | None = None
    """Decay rates of the optimizer's running averages (default: those of the optimizer)."""
    accumulate: Size = 1
    """Micro-batches per optimizer step, over all processes together."""
    clip: NonNegative = 1.0
    """Maximum gradient norm; 0 disables clipping."""
    outlier: Annotated[float, Meta(ge=0)] = 0.0
    """Skip steps whose gradient norm is this many times the usual one, such as 10; 0 skips none."""
    ema: Probability = 0.0
    """Decay of an exponential moving average of the parameters, such as 0.999; 0 keeps none."""
    average: Count = 5
    """Evaluations whose parameters are averaged and tried at the end; 0 tries no average."""
    patience: Count = 0
    """Stop after this many evaluations without improvement; 0 never stops early."""
    evaluate_every: Count = 0
    """Steps between evaluations; 0: at the end of epochs, with --steps at most eight times; with --minutes by the clock, a tenth of it at most."""
    save_every: Count = 0
    """Steps between checkpoints; 0: at the end of each epoch. At least one every ten minutes."""
    log_every: Size = 10
    """Steps between lines of metrics.jsonl."""
    keep: Size = 2
    """Checkpoints kept on disk."""
    tensorboard: bool = False
    """Write TensorBoard event files beside metrics.jsonl."""
    wandb: bool = False
    """Log to Weights & Biases (its own environment variables choose project and mode)."""
    mlflow: bool = False
    """Log to MLflow (MLFLOW_TRACKING_URI chooses where)."""
    device: str = "cpu"
    """Device to train on: cpu, cuda, cuda:1, mps; auto takes a GPU, if there is one."""
    threads: Count = 0
    """CPU threads; 0 takes as many as there are free cores."""
    precision: Precision = "float32"
    """Forward-pass matmul precision; parameters stay float32. auto: bfloat16 where it is safe and faster."""
    compile: bool = False
    """Train with torch.compile: minutes to start; for large models with few batch shapes."""
    sharding: Sharding = "none"
    """full: each process holds a shard of the parameters and of the optimizer state (FSDP); none: all of them."""
    seed: Seed = 0
    """Random seed of the initial parameters, the data order and dropout."""
    seeds: tuple[Seed, ...] = ()
    """Seeds to train with, each in OUT/seed-N; the best on validation is kept (default: once, with --seed)."""
    deterministic: bool = False
    """Use deterministic algorithms only: the same bits on every run on one machine with the same number of threads; may be slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.outlier <= 1:
            raise BadConfig(f"outlier={self.outlier}, expected 0, or a factor above 1")
        if self.sharding == "full" and self.optimizer in ("adafactor", "muon"):
            raise BadConfig(f"{self.optimizer} needs whole matrices, which sharding='full' splits; use adamw, or sharding='none'")
        if self.sharding == "full" and self.compile:
            raise BadConfig("compile=True and sharding='full' cannot be combined; choose one of the two")

    def replace(self, **changes: Any) -> TrainOptions:
        """Return a copy with some options changed.

        Args:
            **changes: options by name.
        """
        return replace(self, **changes)

    def for_processes(self) -> TrainOptions:
        """Return a copy with at least one micro-batch for each process."""
        return self.replace(accumulate=max(self.accumulate, world_size()))

    def with_batches(self, before: Any) -> TrainOptions:
        """Return a copy with the micro-batches per step that a run was started with, unless more are asked for, whatever the number of processes.

        Args:
            before: options of that run, as its checkpoint holds them.
        """
        started = before.get("accumulate") if isinstance(before, dict) else None
        return self.replace(accumulate=started) if isinstance(started, int) and started >= self.accumulate else self

    def to_json(self) -> dict[str, Any]:
        """Return the options as plain values, as a checkpoint holds them."""
        return asdict(self)

    # -- budget --------------------------------------------------------------------------------------------------------

    @property
    def max_steps(self) -> int | None:
        """Steps of the budget: `steps`, or 3,000 where no budget is given."""
        return STEPS if self.steps is self.epochs is self.minutes is None else self.steps

    def total_steps(self, steps_per_epoch: int | None) -> int | None:
        """Return the step at which steps or epochs end the training; None if only the clock does.

        Args:
            steps_per_epoch: steps of an epoch, if known.
        """
        by_epochs = None if self.epochs is None or steps_per_epoch is None else self.epochs * steps_per_epoch
        return min((limit for limit in (self.max_steps, by_epochs) if limit is not None), default=None)

    def used(self, steps: int, epochs: float) -> float:
        """Return the used share of the steps or epochs, at most 1. The clock is the loop's.

        Args:
            steps: steps done.
            epochs: epochs done, with the share of the present one.
        """
        limits = ((steps, self.max_steps), (epochs, self.epochs))
        return min(1.0, max((done / limit for done, limit in limits if limit is not None), default=0.0))

    def why_over(self, steps: int, epochs: int) -> str:
        """Name the limit that is reached, in words; "" if none is. The clock is the loop's.

        Args:
            steps: steps done.
            epochs: epochs done.
        """
        if self.max_steps is not None and steps >= self.max_steps:
            return "all steps done"
        return "all epochs done" if self.epochs is not None and epochs >= self.epochs else ""

    # -- warm-up -------------------------------------------------------------------------------------------------------

    @property
    def needs_epoch_length(self) -> bool:
        """True if the schedule depends on the number of steps of an epoch."""
        return self.epochs is not None and (self.schedule in ENDING or self.warmup_steps is None)

    def with_warmup(self, steps: int | None, at_most: int = WARMUP) -> TrainOptions:
        """Return a copy with the warm-up decided.

        Args:
            steps: steps that the budget will reach; None if nobody knows.
            at_most: limit of a warm-up that was not given.
        """
        if self.warmup_steps is not None:
            return self
        least = 1 if self.schedule == "inverse-sqrt" else 0  # which falls from the end of the warm-up
        return self.replace(warmup_steps=at_most if steps is None else max(least, min(at_most, steps // 10)))

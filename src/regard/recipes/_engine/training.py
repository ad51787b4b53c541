"""Training shared by variants: options of short trainings, and the metrics that every training leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from torch import nn

from ...runs import Run
from ...tasks import DataOptions, Task, load_run
from ...tasks import train as train_task
from ...train import Result, TrainOptions, read_metrics


def short_training(
    steps: int, lr: float, optimizer: Literal["muon", "adamw"] = "muon", *, evaluations: int = 5, weight_decay: float | None = None
) -> TrainOptions:
    """A warm-up over a tenth of the steps, then half a cosine down to zero. Muon by default, because it needs the fewest steps."""
    every = max(1, steps // evaluations)
    return TrainOptions(
        steps=steps,
        optimizer=optimizer,
        lr=lr,
        schedule="cosine",
        warmup_steps=None,
        weight_decay=weight_decay,
        average=0,
        log_every=every,
        evaluate_every=every,
        save_every=steps,
    )


def train_run(
    task: type[Task[Any]], options: DataOptions, train: TrainOptions, out: Path, **model: Any
) -> tuple[Run[Any], dict[str, float]]:
    """Train a task in `out`, with `model` and `settings` as `tasks.train` takes them; the run, and the metrics of the training."""
    result = train_task(task, options, train, out, **model, progress=False)
    run = load_run(out)
    return run, training_metrics(result, run.model, out, "loss")


def training_metrics(result: Result, model: nn.Module, out: Path, validation: str) -> dict[str, float]:
    """Cost of a training and size of its model, and the metric `validation` at each evaluation."""
    curve = {f"validation {validation}, step {event['step']}": event[validation] for event in read_metrics(out, "evaluation")}
    parameters = sum(p.numel() for p in model.parameters())
    return {"steps": float(result.steps), "seconds": result.seconds, "parameters": float(parameters), **curve}

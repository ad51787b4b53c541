"""The one loop over data without gradients: validation, `evaluate`, `predict` and `look` of every task, on the device of the model.

rows = task.encode(examples, model)
for item in task.plan(rows, None):                      each process its share
    loss = task.loss(model, task.batch(item, None))     sums are added up over all processes
    task.answers(loss.outputs, batch)                   answers are gathered, in the order of the rows
answers = task.merge(answers, rows, examples)           or task.generate(model, examples, options)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data.splits import Splits
from ..machine import own_chance
from ..models import Model, device_of, eval_mode
from ..train import Loss, Objective, Progress, ahead, distributed, to_device

if TYPE_CHECKING:
    from .task import Task


def measure(task: Task[Any], model: Any, examples: Any, options: Any = None, *, rows: Any = None) -> tuple[dict[str, float], list[Any]]:
    """Sums over some examples, and the answer to each. All processes of a training call this together.

    Args:
        task: task with its processor.
        model: model, on any device.
        examples: examples of a part.
        options: the task's EvaluateOptions, for answers that are generated.
        rows: what `task.encode` made of the examples, if that has been done.
    """
    rows = task.encode(examples, model) if rows is None else rows
    sums, found = _pass(task, model, rows)
    if generates(task):
        return sums, _generated(task, model, examples, options)
    return sums, task.merge(found, rows, examples)


def measure_loss(task: Task[Any], model: Any, examples: Any) -> dict[str, float]:
    """Sums over some examples, without answers."""
    return _pass(task, model, task.encode(examples, model))[0]


def answer(task: Task[Any], model: Any, examples: Sequence[Any], options: Any) -> list[Any]:
    """The answer to each example."""
    if not examples:
        return []
    return _generated(task, model, examples, options) if generates(task) else measure(task, model, examples, options)[1]


def generates(task: Task[Any]) -> bool:
    """True if answers are searched or sampled."""
    from .task import Task  # which imports this module

    return type(task).generate is not Task.generate


@torch.no_grad()
def _pass(task: Task[Any], model: Any, rows: Any) -> tuple[dict[str, float], list[Any]]:
    """One pass over the rows: sums, and answers in their order."""
    plan, device = task.plan(rows, None), device_of(model)
    numbers = range(distributed.rank(), len(plan), distributed.world())
    totals: dict[str, list[Tensor | float]] = {}
    found: list[tuple[int, Any]] = []
    with eval_mode(model), own_chance(device):
        for n, batch in ahead(lambda n: (n, task.batch(plan[n], None)), numbers, device):
            batch = to_device(batch, device)
            torch.manual_seed(n)  # some models draw samples, others their hash functions: the same ones for any number of processes
            loss: Loss = task.loss(model, batch)
            for name, value in {"loss": loss.total, "count": float(loss.count), **loss.extra}.items():
                totals.setdefault(name, []).append(value)
            answers = task.answers(loss.outputs, batch)
            if len(answers):
                groups = plan.groups  # type: ignore[attr-defined]  # a `Plan`: answers are of its rows
                found += zip(groups[n].tolist(), answers, strict=True)
    names = sorted(set(distributed.gather(list(totals))))
    summed = distributed.sums([_sum(totals.get(name, ())) for name in names], device)
    return dict(zip(names, summed, strict=True)), [one for _, one in sorted(distributed.gather(found), key=lambda pair: pair[0])]


def _sum(values: Sequence[Tensor | float]) -> float:
    """Sum of numbers, with one transfer for all that are on a device."""
    tensors = [value.detach() for value in values if isinstance(value, Tensor)]
    whole = torch.stack(tensors).cpu().double().sum().item() if tensors else 0.0
    return whole + sum(value for value in values if not isinstance(value, Tensor))


def _generated(task: Task[Any], model: Any, examples: Sequence[Any], options: Any) -> list[Any]:
    """Answers of `generate`, each process its share."""
    world, options = distributed.world(), task.EvaluateOptions() if options is None else options
    mine = [examples[n] for n in range(distributed.rank(), len(examples), world)] if world > 1 else examples
    with torch.no_grad(), eval_mode(model):
        found = list(enumerate(task.generate(model, mine, options))) if len(mine) else []
    numbered = [(n * world + distributed.rank(), one) for n, one in found]
    return [one for _, one in sorted(distributed.gather(numbered), key=lambda pair: pair[0])]


class TaskObjective(Objective):
    """Objective of a task: its batches, loss and validation, for the training loop.

    Args:
        task: task with its processor.
        data: splits as `prepare` gave them.
        model: model to train, adapted to the task.
        seed: seed of the order of batches.
    """

    def __init__(self, task: Task[Any], data: Splits[Any], model: Model, seed: int = 0):
        task.check(data, model)
        self.task, self.seed, self.metric, self.unit = task, seed, task.metric, task.loss_unit or task.unit
        self.rows = task.encode(data.train, model)
        self.valid = task.validation(data.valid)
        self.valid_rows = task.encode(self.valid, model)

    def batches(self, epoch: int) -> Sequence[Any]:
        return self.task.plan(self.rows, epoch, self.seed)

    def batch(self, item: Any, generator: torch.Generator) -> Any:
        return self.task.batch(item, generator)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return self.task.loss(model, batch)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        task, options = self.task, self.task.valid_options
        sums, answers = _pass(task, model, self.valid_rows)
        if generates(task):
            examples = self.valid[: task.answered]
            answers = _generated(task, model, examples, options)
        else:
            examples = self.valid
            answers = task.calibrate(model, task.merge(answers, self.valid_rows, examples), examples)
        return task.metrics(sums, answers, examples)

    def before_step(self, progress: Progress) -> float:
        self.task.progress = progress
        return self.task.lr_factor()

    def after_step(self, model: nn.Module) -> None:
        self.task.after_step(model)

    def rates(self, model: nn.Module) -> Mapping[str, float] | None:
        return self.task.rates(model)

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self.task.merged(model, parameters)

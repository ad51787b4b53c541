"""Objective of a training: batches in order, a loss to sum, and one metric that decides.

The loop knows nothing about text or images; an objective knows nothing about steps, processes or files. A whole one:

    class Line(Objective):
        metric = Metric("error", higher=False)

        def batches(self, epoch):              # batch keys: indices, file offsets; a function of (its seed, epoch) alone
            return random.Random(f"{self.seed}/{epoch}").sample(range(100), 100)

        def batch(self, item, generator):      # the tensors of a key, on the CPU; chance comes from the generator
            return self.x[item], self.y[item]

        def loss(self, model, batch):          # a SUM and its count: batches of unequal size then add up to one big batch
            x, y = batch
            return Loss(((model(x) - y) ** 2).sum(), len(x))

        def evaluate(self, model):             # called in all processes, with model.eval() and no gradients, on the model's device
            return {"error": float(((model(self.x_test) - self.y_test) ** 2).mean())}

A regularisation term (a penalty on spans, say) is added in `loss`, times the count. Batches are made ahead of the step that uses them, on
another thread, so they take random numbers from `generator` alone: its seed follows from the loop's seed, the epoch and the index of the
batch. Before each forward pass the loop sets the global random state from the same key. Dropout and random crops are therefore the same after
a crash, and for any number of processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Job = TypeVar("Job")
Made = TypeVar("Made")
AHEAD = 2  # things that are made or wait while one is in use


@dataclass(frozen=True)
class Loss:
    """Loss of one batch: a sum, its count, further sums to log (number correct, say), and the outputs that answers are made from."""

    total: Tensor  # sum of the losses, with its gradient
    count: int  # tokens, examples, or whatever is summed over
    extra: Mapping[str, Tensor | float] = field(default_factory=dict)  # further sums, by name
    outputs: Any = None  # outputs of the model, for `Task.answers`


@dataclass(frozen=True)
class Metric:
    """Metric of `evaluate` that decides which parameters are better."""

    name: str  # key in what `evaluate` gives
    higher: bool  # is better

    def better(self, new: float, old: float | None) -> bool:
        """Compare two values: NaN is never better; any number is better than None."""
        if new != new:
            return False
        return old is None or (new > old if self.higher else new < old)


class Progress(NamedTuple):
    """Progress of a training before a step. By steps or epochs the share is the same after a crash; by minutes it is that of the clock."""

    share: float = 0.0  # share of the budget, from 0 to 1
    epoch: float = 0.0  # 2.5: in the middle of the third


class Objective(ABC):
    """Training objective. Four methods to write; the others do nothing unless they are written."""

    metric: Metric = Metric("loss", higher=False)
    unit: str = "tokens"  # that the losses count

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Any]:
        """Keys of the batches of an epoch, in order.

        Args:
            epoch: number of the epoch, from 0.
        """

    @abstractmethod
    def batch(self, item: Any, generator: torch.Generator) -> Any:
        """Tensors of a key, on the CPU.

        Args:
            item: a key that `batches` gave.
            generator: random numbers of this batch.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Summed loss of a batch.

        Args:
            model: model in training mode.
            batch: what `batch` gave, on the device of the model.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Metrics on validation data; the same in all processes.

        Args:
            model: model in evaluation mode.
        """

    def before_step(self, progress: Progress) -> float:
        """Follow the progress of the training; returns a factor of the learning rate.

        Args:
            progress: share of the budget, and epoch.
        """
        return 1.0

    def after_step(self, model: nn.Module) -> None:  # noqa: B027  nothing, unless it is written
        """Change parameters after an optimizer step: clamp them, redraw random features. Not called after skipped steps.

        Args:
            model: model that is trained.
        """

    def rates(self, model: nn.Module) -> Mapping[str, float] | None:
        """Learning-rate factors by parameter name, 1 where there is none.

        Args:
            model: model that is trained.
        """
        return None

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Parameters that model.safetensors holds: adapters are merged into what they adapt.

        Args:
            model: model that was trained.
            parameters: chosen parameters by name.
        """
        return parameters


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch with its tensors changed, whatever it is made of: dataclasses, tuples, lists, dictionaries."""
    if isinstance(batch, Tensor):
        return change(batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{each.name: map_tensors(getattr(batch, each.name), change) for each in fields(batch) if each.init})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(each, change) for each in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(each, change) for each in batch)
    return {name: map_tensors(each, change) for name, each in batch.items()} if isinstance(batch, dict) else batch


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device; pinned ones are copied while the device computes.

    Args:
        batch: tensors in any tuple, list, dict or dataclass.
        device: device of the result.
    """
    return batch if device.type == "cpu" else map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def ahead(make: Callable[[Job], Made], jobs: Iterable[Job], device: torch.device) -> Iterator[Made]:
    """Results of `make` for each job, in order. For a device each is made on another thread while the one before is in use.

    On the CPU that thread would take its cores from the step, so things are made when they are asked for.

    Args:
        make: function of a job.
        jobs: jobs in order, read as they are needed.
        device: device that will use the results.
    """
    if device.type == "cpu":
        yield from map(make, jobs)
        return

    def pinned(job: Job) -> Made:
        made: Made = make(job)
        return map_tensors(made, Tensor.pin_memory) if device.type == "cuda" else made

    rest, pending = iter(jobs), deque[Future[Made]]()
    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    try:
        while True:
            pending.extend(pool.submit(pinned, job) for job in islice(rest, AHEAD - len(pending)))
            if not pending:
                return
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)  # nobody asks for what has not been begun

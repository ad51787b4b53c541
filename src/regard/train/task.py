"""What the training loop needs of a task: batches in order, a loss to sum, and one metric that decides.

The loop knows nothing about text or images. A task knows nothing about steps, processes or files. A whole task:

    class Line:
        metric = Metric("error", higher=False)

        def batches(self, epoch):          # batch keys: indices, file offsets, functions; a function of (its seed, epoch) alone
            return random.Random(f"{self.seed}/{epoch}").sample(range(100), 100)

        def batch(self, item):             # the tensors of a key
            return self.x[item], self.y[item]

        def loss(self, model, batch):      # a SUM and its count: batches of unequal size then add up to one big batch
            x, y = batch
            return Loss(((model(x) - y) ** 2).sum(), len(x))

        def evaluate(self, model):         # called with model.eval() and no gradients
            return {"error": float(((model(self.x_test) - self.y_test) ** 2).mean())}

A regularisation term (a penalty on spans, say) is added in `loss`, times the count. Five methods are optional: `before_step(used)` is told the
used share of the budget, `after_step(model)` changes parameters after an optimizer step, `rates(model)` gives learning-rate factors by
parameter, `batch_rate(item)` by batch, and `merged(model, parameters)` gives the parameters that model.safetensors holds.

Before each batch is made, the loop sets the random state (PyTorch, NumPy, `random`) from its seed, the epoch and the batch's index in it.
So dropout and random cropping may use the ordinary calls and still be the same after a crash, and for any number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Loss:
    """The loss of one batch: a sum, its count, and further sums to log (number correct, say)."""

    total: Tensor
    count: int
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """The metric of `evaluate` that decides which parameters are better."""

    name: str
    higher: bool  # is better

    def better(self, new: float, old: float | None) -> bool:
        """NaN is never better; any number is better than None."""
        if new != new:
            return False
        return old is None or (new > old if self.higher else new < old)


class Objective(Protocol):
    """Anything with these five members can be trained."""

    @property
    def metric(self) -> Metric: ...

    def batches(self, epoch: int) -> Sequence[Any]: ...

    def batch(self, item: Any) -> Any: ...

    def loss(self, model: nn.Module, batch: Any) -> Loss: ...

    def evaluate(self, model: nn.Module) -> Mapping[str, float]: ...


@runtime_checkable
class BeforeStep(Protocol):
    """A task whose loss changes in the course of training: before each step it is told the used share of the budget, from 0 to 1.

    By steps or epochs the share is the same after a crash; by minutes it is that of the clock.
    """

    def before_step(self, used: float) -> None: ...


@runtime_checkable
class AfterStep(Protocol):
    """A task that also changes the model after each optimizer step: clamps parameters, redraws random features.

    It is not called after skipped steps. Averages of parameters are updated after it.
    """

    def after_step(self, model: nn.Module) -> None: ...


@runtime_checkable
class Rated(Protocol):
    """A task that also gives learning-rate factors by parameter name, 1 by default."""

    def rates(self, model: nn.Module) -> Mapping[str, float]: ...


@runtime_checkable
class BatchRated(Protocol):
    """A task that also gives learning-rate factors by batch: one of several stages, each with a warm-up of its own. Of the batches of a step
    the first counts."""

    def batch_rate(self, item: Any) -> float: ...


@runtime_checkable
class Counted(Protocol):
    """A task whose losses count something else than tokens: examples, images, pixels."""

    @property
    def unit(self) -> str: ...


@runtime_checkable
class Merging(Protocol):
    """A task whose finished model has other parameters than the trained one: adapters are merged into what they adapt."""

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]: ...


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device, whatever it is made of: dataclasses, tuples, lists, dictionaries."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{each.name: to_device(getattr(batch, each.name), device) for each in fields(batch) if each.init})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(each, device) for each in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(each, device) for each in batch)
    return {name: to_device(each, device) for name, each in batch.items()} if isinstance(batch, dict) else batch

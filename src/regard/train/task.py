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

A regularisation term (a penalty on spans, say) is added in `loss`, times the count. Two methods are optional: `after_step(model)`
changes parameters after an optimizer step, and `rates(model)` gives learning-rate factors by parameter.

Before each batch is made, the loop sets the random state (PyTorch, NumPy, `random`) from its seed, the epoch and the batch's index in it.
So dropout and random cropping may use the ordinary calls and still be the same after a crash, and for any number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

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
class AfterStep(Protocol):
    """A task that also changes the model after each optimizer step: clamps parameters, redraws random features.

    It is not called after skipped steps. Averages of parameters are updated after it.
    """

    def after_step(self, model: nn.Module) -> None: ...


@runtime_checkable
class Rated(Protocol):
    """A task that also gives learning-rate factors by parameter name, 1 by default."""

    def rates(self, model: nn.Module) -> Mapping[str, float]: ...

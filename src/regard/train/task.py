"""What the training loop asks of a task: batches in order, a loss to sum, and one figure that decides.

The loop knows nothing about words or pictures. A task knows nothing about steps, processes or files. A whole task:

    class Line:
        metric = Metric("error", higher=False)

        def batches(self, epoch):          # names of batches: numbers, file places, functions; a function of (its seed, epoch) alone
            return random.Random(f"{self.seed}/{epoch}").sample(range(100), 100)

        def batch(self, item):             # the tensors behind a name
            return self.x[item], self.y[item]

        def loss(self, model, batch):      # a SUM, and over how many: batches of unequal size then add up to what one big batch gives
            x, y = batch
            return Loss(((model(x) - y) ** 2).sum(), len(x))

        def evaluate(self, model):         # called with model.eval() and no gradients
            return {"error": float(((model(self.x_test) - self.y_test) ** 2).mean())}

What a model wants added to its loss (a penalty on spans, say) is added in `loss`, times the count. What it wants done to its weights
after a step, a task says in a sixth method, `after_step(model)`, if it has one; and in `rates(model)` which weights learn more slowly.

Before each batch is made, the loop sets the random state (PyTorch, NumPy, `random`) from its seed, the epoch and the batch's place in it.
So dropout and random cropping may use the ordinary calls and still be the same after a crash, and for any number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@dataclass(frozen=True)
class Loss:
    """What one batch gives: a sum, over how many, and further sums worth logging (number right, say)."""

    total: Tensor
    count: int
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """The figure of `evaluate` that decides which weights are better."""

    name: str
    higher: bool  # is better

    def better(self, new: float, old: float | None) -> bool:
        """Not a number is never better; anything is better than nothing."""
        if new != new:
            return False
        return old is None or (new > old if self.higher else new < old)


class Task(Protocol):
    """Anything with these five names can be trained."""

    @property
    def metric(self) -> Metric: ...

    def batches(self, epoch: int) -> Sequence[Any]: ...

    def batch(self, item: Any) -> Any: ...

    def loss(self, model: nn.Module, batch: Any) -> Loss: ...

    def evaluate(self, model: nn.Module) -> Mapping[str, float]: ...


@runtime_checkable
class AfterStep(Protocol):
    """A task that also does something to the model after each step of the optimiser: puts weights back within bounds, draws features anew.

    Steps that are skipped are not followed by it. Averages of weights come after it.
    """

    def after_step(self, model: nn.Module) -> None: ...


@runtime_checkable
class Rated(Protocol):
    """A task that also says, by the names of parameters, by which share of the learning rate each learns; 1 where it says nothing."""

    def rates(self, model: nn.Module) -> Mapping[str, float]: ...

"""A model's parameters by name, and two ways of averaging them over time.

`Ema` is an exponential moving average; `Ring` averages the last few checkpoints (Vaswani et al. 2017 took 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import Misfit
from .distributed import alike

Parameters = dict[str, Tensor]


def parameters_of(model: nn.Module) -> Parameters:
    """Parameters and persistent buffers, not copied; a tied parameter is under its first name only."""
    saved = model.state_dict(keep_vars=True)
    named = [*model.named_parameters(), *((name, buffer) for name, buffer in model.named_buffers() if name in saved)]
    return {name: tensor.detach() for name, tensor in named}


def copy_parameters(parameters: Mapping[str, Tensor]) -> Parameters:
    """Copies of the tensors."""
    return {name: tensor.detach().clone() for name, tensor in parameters.items()}


@torch.no_grad()
def load_parameters(model: nn.Module, parameters: Mapping[str, Tensor], origin: str = "these parameters") -> None:
    """Copy the values into the model; all names and shapes must match."""
    differences = compare_parameters(model, parameters)
    if any(differences):
        advice = "build the model from the configuration they were trained with"
        raise Misfit(f"{origin} do not fit {type(model).__name__}", *differences, advice)
    for name, tensor in parameters_of(model).items():
        tensor.copy_(alike(parameters[name], tensor))


def compare_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> tuple[list[str], list[str], list[str]]:
    """The names that the model has and these lack, those that it lacks, and those of another size."""
    own = parameters_of(model)
    shapes = {name: (tuple(tensor.shape), tuple(own[name].shape)) for name, tensor in parameters.items() if name in own}
    sizes = [f"{name} is {given}, not {expected}" for name, (given, expected) in shapes.items() if given != expected]
    return [name for name in own if name not in parameters], [name for name in parameters if name not in own], sizes


@contextmanager
def temporary_parameters(model: nn.Module, parameters: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Inside, the model has these parameters; afterwards its own again. None changes nothing.

    What is tuned inside, such as a threshold on validation data, belongs to these parameters, and is written to them.
    """
    if parameters is None:
        yield
        return
    own = copy_parameters(parameters_of(model))
    load_parameters(model, parameters)
    try:
        yield
        for name, tensor in parameters_of(model).items():
            parameters[name].copy_(tensor)
    finally:
        load_parameters(model, own)


class Ema:
    """θ̄ ← d θ̄ + (1 − d) θ with d = min(decay, (1 + n) / (10 + n)) at update n, so that the initial parameters are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.mean = decay, copy_parameters(parameters_of(model))

    @torch.no_grad()
    def update(self, model: nn.Module, n: int) -> None:
        share = 1 - min(self.decay, (1 + n) / (10 + n))
        for name, tensor in parameters_of(model).items():
            if tensor.is_floating_point():
                self.mean[name].lerp_(tensor, share)
            else:
                self.mean[name].copy_(tensor)


class Ring:
    """The parameters at the last `size` evaluations."""

    def __init__(self, size: int):
        self.kept: deque[Parameters] = deque(maxlen=size)

    def push(self, model: nn.Module) -> None:
        self.kept.append(copy_parameters(parameters_of(model)))

    def mean(self) -> Parameters:
        """The mean of each tensor; integers are those of the last evaluation."""
        last = self.kept[-1]
        return {name: torch.stack([w[name] for w in self.kept]).mean(0) if last[name].is_floating_point() else last[name] for name in last}

    def flat(self) -> Parameters:
        """All in one dictionary, the oldest first: "0:name", "1:name", …"""
        return {f"{n}:{name}": tensor for n, parameters in enumerate(self.kept) for name, tensor in parameters.items()}

    def fill(self, flat: Mapping[str, Tensor]) -> None:
        """Restore from what `flat` returned."""
        evaluations: dict[int, Parameters] = {}
        for key, tensor in flat.items():
            number, name = key.split(":", 1)
            evaluations.setdefault(int(number), {})[name] = tensor
        self.kept.extend(evaluations[n] for n in sorted(evaluations))

"""The numbers of a model under their names, and two ways of averaging them over time.

`Ema` follows the weights with a running mean; `Ring` keeps the last few and gives their mean (Vaswani et al. 2017 took 5 checkpoints).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import BadFile
from .sharding import alike

Weights = dict[str, Tensor]


def weights_of(model: nn.Module) -> Weights:
    """Parameters and saved buffers, the model's own tensors and not copies; a tied weight stands under its first name only."""
    saved = model.state_dict(keep_vars=True)
    named = [*model.named_parameters(), *((name, buffer) for name, buffer in model.named_buffers() if name in saved)]
    return {name: tensor.detach() for name, tensor in named}


def copied(weights: Mapping[str, Tensor]) -> Weights:
    """The same numbers in memory of their own."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str = "these weights") -> None:
    """Write the numbers into the model; every name and every size must fit."""
    own = weights_of(model)
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    sizes = [
        f"{n} is {tuple(weights[n].shape)}, not {tuple(own[n].shape)}" for n in own if n in weights and weights[n].shape != own[n].shape
    ]
    if missing or unknown or sizes:
        parts = (("missing", missing), ("unknown", unknown), ("sizes", sizes))
        said = "; ".join(f"{what}: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}" for what, names in parts if names)
        raise BadFile(f"{origin} do not fit {type(model).__name__}: {said}; build the model from the configuration they were trained with")
    for name, tensor in own.items():
        tensor.copy_(alike(weights[name], tensor))


@contextmanager
def lent(model: nn.Module, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Inside, the model has these weights; afterwards its own again. None leaves it alone."""
    if weights is None:
        yield
        return
    own = copied(weights_of(model))
    load_weights(model, weights)
    try:
        yield
    finally:
        load_weights(model, own)


class Ema:
    """θ̄ ← d θ̄ + (1 − d) θ with d = min(decay, (1 + n) / (10 + n)) at update n, so that the first weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.mean = decay, copied(weights_of(model))

    @torch.no_grad()
    def update(self, model: nn.Module, n: int) -> None:
        share = 1 - min(self.decay, (1 + n) / (10 + n))
        for name, tensor in weights_of(model).items():
            if tensor.is_floating_point():
                self.mean[name].lerp_(tensor, share)
            else:
                self.mean[name].copy_(tensor)


class Ring:
    """The weights of the last `size` moments."""

    def __init__(self, size: int):
        self.kept: deque[Weights] = deque(maxlen=size)

    def push(self, model: nn.Module) -> None:
        self.kept.append(copied(weights_of(model)))

    def mean(self) -> Weights:
        """Each number's mean, in its own type; whole numbers are those of the last moment."""
        last = self.kept[-1]
        return {name: torch.stack([w[name] for w in self.kept]).mean(0) if last[name].is_floating_point() else last[name] for name in last}

    def flat(self) -> Weights:
        """All in one dictionary, the oldest first: "0:name", "1:name", …"""
        return {f"{n}:{name}": tensor for n, weights in enumerate(self.kept) for name, tensor in weights.items()}

    def fill(self, flat: Mapping[str, Tensor]) -> None:
        """What `flat` gave."""
        moments: dict[int, Weights] = {}
        for key, tensor in flat.items():
            number, name = key.split(":", 1)
            moments.setdefault(int(number), {})[name] = tensor
        self.kept.extend(moments[n] for n in sorted(moments))

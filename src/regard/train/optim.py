"""Optimizers: frozen configurations, made of `TrainOptions` by `optimizer_of` and built for a model when training starts.

Weight decay acts on matrices only: a bias or the gain of a norm has no reason to be small. The learning rate is not part of the
configuration; the schedule sets it before every step. `rates` (from `layerwise`, for example) are factors of the learning rate by parameter.

| optimizer | when |
|---|---|
| `Adam` | the Transformer's own recipe, with its warm-up |
| `AdamW` | the usual choice: decoupled weight decay |
| `RAdam` | without warm-up: it takes small steps while its variance estimate is young |
| `Lamb` | very large batches |
| `Muon` | the fewest steps: hidden matrices move as far in rare directions as in frequent ones |
| `Adafactor` | little memory: one row and one column of statistics per matrix instead of two matrices |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..bounds import Bounded, NonNegative, Positive, Probability
from ..errors import BadConfig
from ..layers import MultiHead
from .lamb import LambOptimizer
from .muon import MuonOptimizer
from .options import TrainOptions

Rates = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Bounded, ABC):
    """Hyperparameters of an optimizer, checked against the bounds of their types."""

    @abstractmethod
    def build(self, model: nn.Module, rates: Rates | None = None) -> torch.optim.Optimizer:
        """Build the optimizer of all trainable parameters.

        Args:
            model: model to train.
            rates: factors of the learning rate by parameter name.
        """


def parameter_groups(model: nn.Module, weight_decay: float, rates: Rates | None = None) -> list[dict[str, Any]]:
    """Group the trainable parameters: matrices with weight decay, vectors and scalars without; a tied parameter appears once.

    Each group has its factor of the learning rate as `rate`.

    Args:
        model: model to train.
        weight_decay: weight decay of the matrices.
        rates: factors of the learning rate by parameter name, 1 by default.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not learning:
        raise BadConfig(f"{type(model).__name__} has no trainable parameter; is everything frozen?")
    rates = rates or {}
    unknown = sorted(set(rates) - {name for name, _ in model.named_parameters()})
    if unknown or any(not 0 < rate < float("inf") for rate in rates.values()):
        wrong = f"there is no parameter {unknown[0]}" if unknown else f"rates are {sorted(set(rates.values()))}"
        raise BadConfig(f"{type(model).__name__}: {wrong}; expected rates above 0 by parameter name")
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in learning.items():
        groups.setdefault((rates.get(name, 1.0), parameter.ndim < 2), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": 0.0 if small else weight_decay, "rate": rate}
        for (rate, small), parameters in sorted(groups.items(), key=lambda group: (-group[0][0], group[0][1]))
    ]


def layerwise(model: nn.Module, decay: float) -> dict[str, float]:
    """Layer-wise learning-rate decay: factors that fall by `decay` per layer from the top down; lower layers need less change.

    Howard & Ruder 2018 (arXiv:1801.06146) took 1 / 2.6; for transformers 0.8 to 0.95 is usual.

    Args:
        model: model to train.
        decay: factor from a layer to the one below it.
    """
    if not 0 < decay <= 1:
        raise BadConfig(f"decay={decay}: expected a factor above 0, at most 1")
    depth = depths(model)
    top = max(depth.values(), default=0)
    return {name: decay ** (top - below) for name, below in depth.items()}


def depths(model: nn.Module) -> dict[str, int]:
    """Number the parameters by depth: 0 before the layers, 1 … n in them, n + 1 after. Layers are the longest ModuleList.

    What comes before and after them follows from the order in which the model registers its modules.

    Args:
        model: model with a list of layers.
    """
    lists = {name: part for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part)}
    name, layers = max(lists.items(), key=lambda one: len(one[1]), default=("", nn.ModuleList()))
    found, met = {}, False
    for parameter, _ in model.named_parameters():
        inside = len(layers) > 0 and parameter.startswith(f"{name}.")
        met = met or inside
        found[parameter] = int(parameter[len(name) + 1 :].split(".")[0]) + 1 if inside else (len(layers) + 1) * met
    return found


@dataclass(frozen=True, kw_only=True)
class Adam(OptimizerConfig):
    """Kingma & Ba 2015, arXiv:1412.6980, with the numbers of Vaswani et al. 2017. No weight decay: for that take AdamW."""

    betas: tuple[Probability, Probability] = (0.9, 0.98)  # decay rates of the running means of the gradient and of its square
    eps: Positive = 1e-9  # added to the root of the mean square

    def build(self, model: nn.Module, rates: Rates | None = None) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameter_groups(model, 0.0, rates), betas=self.betas, eps=self.eps, fused=True)


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """Loshchilov & Hutter 2019, arXiv:1711.05101."""

    betas: tuple[Probability, Probability] = (0.9, 0.98)  # decay rates of the running means of the gradient and of its square
    eps: Positive = 1e-8  # added to the root of the mean square
    weight_decay: NonNegative = 0.01  # matrices shrink by it, times the learning rate, per step

    def build(self, model: nn.Module, rates: Rates | None = None) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameter_groups(model, self.weight_decay, rates), betas=self.betas, eps=self.eps, fused=True)


@dataclass(frozen=True, kw_only=True)
class RAdam(OptimizerConfig):
    """Liu et al. 2020, arXiv:1908.03265. PyTorch's form: it trusts the variance from ρ > 5 on, the paper from ρ > 4."""

    betas: tuple[Probability, Probability] = (0.9, 0.999)  # decay rates of the running means of the gradient and of its square
    eps: Positive = 1e-8  # added to the root of the mean square
    weight_decay: NonNegative = 0.0  # matrices shrink by it, times the learning rate, per step

    def build(self, model: nn.Module, rates: Rates | None = None) -> torch.optim.Optimizer:
        groups = parameter_groups(model, self.weight_decay, rates)
        return torch.optim.RAdam(groups, betas=self.betas, eps=self.eps, decoupled_weight_decay=True)


@dataclass(frozen=True, kw_only=True)
class Lamb(OptimizerConfig):
    """You et al. 2020, arXiv:1904.00962; the formula is in `lamb.py`."""

    betas: tuple[Probability, Probability] = (0.9, 0.999)  # decay rates of the running means of the gradient and of its square
    eps: Positive = 1e-6  # added to the root of the mean square
    weight_decay: NonNegative = 0.01  # matrices shrink by it, times the learning rate, per step

    def build(self, model: nn.Module, rates: Rates | None = None) -> torch.optim.Optimizer:
        groups = parameter_groups(model, self.weight_decay, rates)
        for group in groups:
            group["ratio"] = group["params"][0].ndim >= 2
        return LambOptimizer(groups, betas=self.betas, eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerConfig):
    """Jordan et al. 2024, for the matrices of linear layers; the formula is in `muon.py`. Everything else, and the output layer, by AdamW."""

    momentum: Probability = 0.95  # share of the earlier gradients that is kept, of hidden matrices
    betas: tuple[Probability, Probability] = (
        0.9,
        0.98,
    )  # decay rates of the running means of the gradient and of its square, of all others
    eps: Positive = 1e-8  # added to the root of the mean square
    weight_decay: NonNegative = 0.01  # matrices shrink by it, times the learning rate, per step

    def build(self, model: nn.Module, rates: Rates | None = None) -> torch.optim.Optimizer:
        kinds = (nn.Linear, nn.Embedding)
        of = {kind: {id(part.weight) for part in model.modules() if isinstance(part, kind)} for kind in kinds}
        hidden = of[nn.Linear] - of[nn.Embedding] - _head(model)
        qkv = {id(part.qkv.weight): list(part.sizes) for part in model.modules() if isinstance(part, MultiHead) and part.qkv is not None}
        groups = []
        for group in parameter_groups(model, self.weight_decay, rates):
            if matrices := [p for p in group["params"] if id(p) in hidden]:
                groups.append({**group, "params": matrices, "parts": [qkv.get(id(p), [len(p)]) for p in matrices]})
            if others := [p for p in group["params"] if id(p) not in hidden]:
                groups.append({**group, "params": others})
        return MuonOptimizer(groups, momentum=self.momentum, betas=self.betas, eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerConfig):
    """Shazeer & Stern 2018, arXiv:1804.04235. Its step is the learning rate, at most 1/√step, times the RMS of the tensor: use ~1e-2."""

    eps: Positive = 1e-3  # lower bound of that RMS
    weight_decay: NonNegative = 0.0  # matrices shrink by it, times the learning rate, per step

    def build(self, model: nn.Module, rates: Rates | None = None) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(parameter_groups(model, self.weight_decay, rates), eps=(None, self.eps))


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {kind.__name__.lower(): kind for kind in (Adam, AdamW, RAdam, Lamb, Muon, Adafactor)}


def optimizer_of(options: TrainOptions) -> OptimizerConfig:
    """Make the optimizer that the options name, with its own defaults where they say nothing.

    Args:
        options: training options.
    """
    given = {name: getattr(options, name) for name in ("weight_decay", "betas") if getattr(options, name) is not None}
    try:
        return OPTIMIZERS[options.optimizer](**given)
    except TypeError as wrong:
        raise BadConfig(f"{options.optimizer} takes no {' and no '.join(given)}; leave it out, or choose adamw") from wrong


def _head(model: nn.Module) -> set[int]:
    """The parameters of the output projection; none of a model that has no such projection, such as CLIP."""
    try:
        return {id(part) for part in model.head()}  # type: ignore[operator]
    except AttributeError:
        return set()

"""Where a run stands, and how all of it goes into a checkpoint and out again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadConfig, BadFile
from ._rng import rng_state, set_rng_state
from .checkpoint import Checkpoint
from .config import TrainConfig
from .optim import Rates
from .sharding import alike, gathered
from .weights import Ema, Ring, Weights, load_weights, weights_of


@dataclass
class Window:
    """Sums since the last line of the log."""

    total: float = 0.0
    count: int = 0
    steps: int = 0
    seconds: float = 0.0
    norm: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


@dataclass
class Position:
    """The loop's own numbers: plain, so that JSON holds them exactly."""

    epoch: int = 0
    index: int = 0  # batches of this epoch that are done
    step: int = 0  # steps tried
    skipped: int = 0  # of them not taken
    in_a_row: int = 0  # skipped, without one taken between
    tokens: int = 0
    seconds: float = 0.0
    usual_norm: float = 0.0  # running mean of the gradient's length
    best: float | None = None  # the deciding figure
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    evaluated: int = -1  # step of the last evaluation
    precision: str = ""  # what "auto" has decided
    metrics: dict[str, float] = field(default_factory=dict)  # of that evaluation
    window: Window = field(default_factory=Window)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Position:
        return cls(**{**plain, "window": Window(**plain["window"])})


class State:
    """Everything that changes while training: the model, the optimiser, averages, position."""

    def __init__(self, model: nn.Module, config: TrainConfig, rates: Rates | None = None):
        self.model, self.config = model, config
        self.optimizer = config.optimizer.build(model) if rates is None else config.optimizer.build(model, rates)
        self.ema = Ema(model, config.ema) if config.ema else None
        self.ring = Ring(config.average)
        self.best: Weights = {}
        self.position = Position()

    def checkpoint(self, log_length: int, keep: bool = True) -> Checkpoint:
        """All of it by name. What the tensors are is decided here; how they reach the disk is not.

        Tensors are whole: if processes hold parts, all must ask together, and those that do not `keep` get none.
        """
        tensors = {"model": weights_of(self.model), "optimizer": _flat(self.optimizer, self.model)}
        for name, group in (("ema", self.ema.mean if self.ema else {}), ("ring", self.ring.flat()), ("best", self.best)):
            if group:
                tensors[name] = group
        tensors = {name: gathered(group, keep) for name, group in tensors.items()}
        values = {
            "loop": dataclasses.asdict(self.position),
            "rng": rng_state(),
            "config": self.config.to_json(),
            "log": {"length": log_length},
        }
        return Checkpoint(self.position.step, tensors, values)

    def restore(self, checkpoint: Checkpoint) -> int:
        """Back to where the checkpoint was taken; the length of the log then."""
        try:
            before = TrainConfig.from_json(checkpoint.values["config"])
            fixed = ("seed", "accumulate")
            changed = [
                f"{name} {getattr(before, name)} → {getattr(self.config, name)}"
                for name in fixed
                if getattr(before, name) != getattr(self.config, name)
            ]
            if type(before.optimizer) is not type(self.config.optimizer):
                changed.append(f"optimizer {type(before.optimizer).__name__} → {type(self.config.optimizer).__name__}")
            if changed:
                raise BadConfig(f"the run was begun otherwise: {', '.join(changed)}; go on with what it had, or begin a new run")
            load_weights(self.model, checkpoint.tensors["model"], f"the weights of step {checkpoint.step}")
            _unflat(self.optimizer, self.model, checkpoint.tensors["optimizer"])
            if self.ema:
                # a run that had no running mean begins one from the weights it has
                self.ema.mean = self._placed(checkpoint, "ema") or self.ema.__class__(self.model, self.config.ema).mean
            self.ring.fill(self._placed(checkpoint, "ring"))
            self.best = self._placed(checkpoint, "best")
            self.position = Position.from_json(checkpoint.values["loop"])
            set_rng_state(checkpoint.values["rng"])
            return int(checkpoint.values["log"]["length"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, BadConfig | BadFile):
                raise
            raise BadFile(f"the checkpoint of step {checkpoint.step} lacks something this version needs: {error!r}") from error

    def _placed(self, checkpoint: Checkpoint, group: str) -> Weights:
        """Weights as the model's own are: on its device, and cut as they are. A name may carry a number, "0:name"."""
        own = weights_of(self.model)
        return {name: alike(tensor, own[name.rpartition(":")[2]]) for name, tensor in checkpoint.tensors.get(group, {}).items()}


def _flat(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """ "exp_avg:encoder.weight" → tensor; numbers become tensors of one number."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{key}:{names[parameter]}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def _unflat(optimizer: torch.optim.Optimizer, model: nn.Module, flat: dict[str, Tensor]) -> None:
    """Through the optimiser's own door, which knows what belongs on which device in which type."""
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        what, name = key.split(":", 1)
        own = parameters[name]
        states.setdefault(name, {})[what] = alike(tensor, own) if tensor.shape == own.shape else tensor
    numbers = {parameter: n for n, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state = {numbers[parameters[name]]: values for name, values in states.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

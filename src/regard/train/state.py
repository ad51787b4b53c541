"""The state of a run, random generators included, and how it goes into a checkpoint and back."""

from __future__ import annotations

import hashlib
import random
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BadConfig, BadFile, RegardError
from .checkpoint import Checkpoint
from .distributed import alike, gathered
from .optim import Rates, optimizer_of
from .options import TrainOptions
from .parameters import Ema, Parameters, Ring, load_parameters, parameters_of

YOUNG = 20  # steps before the usual gradient norm is known


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
    """The loop's counters, as JSON values."""

    epoch: int = 0
    index: int = 0  # batches of this epoch that were used
    step: int = 0  # steps, skipped ones included
    skipped: int = 0  # steps not taken
    in_a_row: int = 0  # skipped in succession
    tokens: int = 0
    seconds: float = 0.0
    usual_norm: float = 0.0  # running mean of the gradient norm
    best: float | None = None  # value of the deciding metric
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    evaluated: int = -1  # step of the last evaluation
    precision: str = ""  # choice of "auto"
    metrics: dict[str, float] = field(default_factory=dict)  # results of that evaluation
    window: Window = field(default_factory=Window)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Position:
        return msgspec.convert(plain, cls)

    def is_outlier(self, norm: float, limit: float) -> bool:
        """True if this step's gradient norm is more than `limit` times the usual one, which then takes it into account; 0: never."""
        taken, usual = self.step - 1 - self.skipped, self.usual_norm
        far = bool(limit) and taken >= YOUNG and norm > limit * usual
        # outliers count as the limit: if large gradients have become usual, the mean adapts instead of skipping for ever
        self.usual_norm = norm if taken == 0 else usual + 0.05 * (min(norm, limit * usual) - usual if far else norm - usual)
        return far

    def averages(self, lr: float) -> dict[str, float]:
        """A line of the log: counters, and means since the last line. `tokens` are what the losses count, whatever that is."""
        window = self.window
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": window.total / window.count,
            "lr": lr,
            "norm": window.norm / window.steps,
            "tokens": self.tokens,
            "tokens_per_second": window.count / max(window.seconds, 1e-9),
            "skipped": self.skipped,
            **{name: number / window.count for name, number in window.extra.items()},
        }


class State:
    """Everything that changes during training: model, optimizer, averages, position."""

    def __init__(self, model: nn.Module, options: TrainOptions, rates: Rates | None = None):
        self.model, self.options = model, options
        self.optimizer = optimizer_of(options).build(model, rates)
        self.ema = Ema(model, options.ema) if options.ema else None
        self.ring = Ring(options.average)
        self.best: Parameters = {}
        self.position = Position()

    def checkpoint(self, log_length: int, keep: bool = True) -> Checkpoint:
        """Everything by name, in whole tensors; if sharded, all processes must call this, and those that do not `keep` get none."""
        tensors = {"model": parameters_of(self.model), "optimizer": _flat(self.optimizer, self.model)}
        for name, group in (("ema", self.ema.mean if self.ema else {}), ("ring", self.ring.flat()), ("best", self.best)):
            if group:
                tensors[name] = group
        tensors = {name: gathered(group, keep) for name, group in tensors.items()}
        values = {"loop": asdict(self.position), "rng": rng_state(), "config": self.options.to_json(), "log": {"length": log_length}}
        return Checkpoint(self.position.step, tensors, values)

    def restore(self, checkpoint: Checkpoint) -> int:
        """Restore the checkpoint; returns the length of the log at that time."""
        try:
            self._check_unchanged(checkpoint.values["config"])
            load_parameters(self.model, checkpoint.tensors["model"], f"the parameters of step {checkpoint.step}")
            _unflat(self.optimizer, self.model, checkpoint.tensors["optimizer"])
            if self.ema:
                # a run without a moving average starts one from its parameters
                self.ema.mean = self._placed(checkpoint, "ema") or Ema(self.model, self.options.ema).mean
            self.ring.fill(self._placed(checkpoint, "ring"))
            self.best = self._placed(checkpoint, "best")
            self.position = Position.from_json(checkpoint.values["loop"])
            set_rng_state(checkpoint.values["rng"])
            return int(checkpoint.values["log"]["length"])
        except RegardError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise BadFile(f"the checkpoint of step {checkpoint.step} lacks something this version needs: {error!r}") from error

    def _check_unchanged(self, before: dict[str, Any]) -> None:
        """Refuse settings with which a resumed run would not give what an uninterrupted one gives."""
        optimizer = before["optimizer"]
        old = {"seed": before["seed"], "accumulate": before["accumulate"]}
        old["optimizer"] = optimizer["name"] if isinstance(optimizer, dict) else optimizer  # a dictionary up to version 0.1.0
        if changed := [f"{name} {value} → {now}" for name, value in old.items() if value != (now := getattr(self.options, name))]:
            raise BadConfig(f"the run was started with other settings: {', '.join(changed)}; resume with the old ones, or start a new run")

    def _placed(self, checkpoint: Checkpoint, group: str) -> Parameters:
        """Tensors placed and sharded like the model's own. A name may have a number in front, "0:name"."""
        own = parameters_of(self.model)
        return {name: alike(tensor, own[name.rpartition(":")[2]]) for name, tensor in checkpoint.tensors.get(group, {}).items()}


def _flat(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """ "exp_avg:encoder.weight" → tensor; numbers become scalar tensors."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{key}:{names[parameter]}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def _unflat(optimizer: torch.optim.Optimizer, model: nn.Module, flat: dict[str, Tensor]) -> None:
    """Through `load_state_dict`, which knows the device and dtype of each tensor."""
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        what, name = key.split(":", 1)
        own = parameters[name]
        factors = (*own.shape[:-1], 1), (*own.shape[:-2], 1, *own.shape[-1:])  # Adafactor's
        if tensor.shape not in (own.shape, torch.Size(), *factors):
            raise ValueError(f"{key} is {tuple(tensor.shape)}, and the parameter {tuple(own.shape)}")
        states.setdefault(name, {})[what] = alike(tensor, own) if tensor.shape == own.shape else tensor
    numbers = {parameter: n for n, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state = {numbers[parameters[name]]: values for name, values in states.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


# -- randomness ---------------------------------------------------------------------------------------------------------


def seeded(*key: int | str) -> torch.Generator:
    """Generator on the CPU for a key; another stream than that of `seed_all` with the same key."""
    return torch.Generator().manual_seed(int.from_bytes(_digest(key)[20:28], "little") >> 1)


def seed_all(*key: int | str) -> None:
    """Set PyTorch, NumPy and `random` from a key; similar keys give unrelated states."""
    digest = _digest(key)
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    np.random.seed(int.from_bytes(digest[8:12], "little"))
    random.seed(int.from_bytes(digest[12:20], "little"))


def _digest(key: tuple[int | str, ...]) -> bytes:
    return hashlib.sha256("/".join(map(str, key)).encode()).digest()


def rng_state() -> dict[str, Any]:
    """The state of the three generators."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
        "random": [version, list(numbers), gauss],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = [bytes(one.tolist()).hex() for one in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned."""
    torch.set_rng_state(_bytes(state["torch"]))
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if torch.cuda.is_available() and len(state.get("cuda", ())) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_bytes(one) for one in state["cuda"]])


def _bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)

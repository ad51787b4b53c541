"""Evaluations of a run: the metrics of given parameters, the best so far, and which parameters the run keeps in the end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ..errors import BadConfig
from . import checkpoint as checkpoints
from . import distributed
from .objective import Objective
from .parameters import Parameters, copy_parameters, load_parameters, parameters_of, temporary_parameters
from .state import State, seed_all


class Candidate(NamedTuple):
    """Parameters that a run may keep, and how good they are."""

    parameters: Parameters
    metrics: dict[str, float]


class Evaluator:
    """Evaluate parameters in the caller's model, where it is; rank 0 writes the best of them. All processes call each method together.

    If training is sharded, the model has parameters only inside an evaluation and after `load`.
    """

    def __init__(self, model: nn.Module, objective: Objective, state: State, path: Path, sharded: bool):
        self.model, self.objective, self.state, self.path, self.sharded = model, objective, state, path, sharded
        self.first = distributed.rank() == 0

    def evaluate(self) -> None:
        """Evaluate the current parameters, or their moving average; remember them if they are the best so far."""
        state, position, metric = self.state, self.state.position, self.objective.metric
        shadow = state.ema.mean if state.ema else None
        position.metrics, position.evaluated = self.metrics(shadow), position.step
        state.ring.push(state.model)
        value = position.metrics[metric.name]
        position.stale += 1
        if metric.better(value, position.best):
            position.best, position.best_step, position.stale = value, position.step, 0
            state.best = copy_parameters(shadow or parameters_of(state.model))
            self.write(state.best)

    def metrics(self, parameters: Parameters | None) -> dict[str, float]:
        """Metrics of these parameters, or of the current ones; the same in all processes."""
        metric = self.objective.metric
        with self._with_parameters(parameters), torch.no_grad():
            seed_all(self.state.options.seed, "evaluation")
            self.model.eval()
            metrics = {name: float(number) for name, number in self.objective.evaluate(self.model).items()}
            self.model.train()
        if metric.name not in metrics:
            raise BadConfig(f"{metric.name!r} is the deciding metric, but evaluate returned only {', '.join(metrics) or 'nothing'}")
        return metrics

    def _with_parameters(self, parameters: Parameters | None) -> AbstractContextManager[None]:
        if self.sharded:
            return distributed.filled(self.model, parameters or parameters_of(self.state.model))
        return temporary_parameters(self.model, parameters)

    def candidates(self) -> dict[str, Candidate]:
        """The last, the best and the averaged parameters, as far as they differ."""
        state, position = self.state, self.state.position
        last = state.ema.mean if state.ema else copy_parameters(parameters_of(state.model))
        found = {"last": Candidate(last, position.metrics)}
        if state.best and position.best_step != position.step:
            found["best"] = Candidate(state.best, self.metrics(state.best))
        if len(state.ring.kept) > 1:
            mean = state.ring.mean()
            found["average"] = Candidate(mean, self.metrics(mean))
        return found

    def choose(self, candidates: dict[str, Candidate]) -> str:
        """The name of the best candidate by the deciding metric; of equals the first."""
        metric, chosen = self.objective.metric, "last"
        for name, candidate in candidates.items():
            if metric.better(candidate.metrics[metric.name], candidates[chosen].metrics[metric.name]):
                chosen = name
        return chosen

    def load(self, parameters: Parameters) -> None:
        """Load these parameters into the caller's model."""
        if self.sharded:
            distributed.fill(self.model, distributed.gathered(parameters))
        else:
            load_parameters(self.model, parameters)

    def write(self, parameters: Parameters) -> None:
        """model.safetensors: what can be used now, finished or not."""
        whole = distributed.gathered(parameters, keep=self.first)
        if self.first:
            checkpoints.save_parameters(self.path, dict(self.objective.merged(self.model, whole)))

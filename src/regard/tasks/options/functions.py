"""Options of the task functions: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from ...bounds import Bounded, Size
from ...train.options import TrainOptions
from .shared import DataOptions, Declaration, Files


@dataclass(frozen=True, kw_only=True)
class FunctionsOptions(DataOptions):
    """Functions."""

    data: Files = "gp:"
    """CSV of task, x…, y… with a row per value; gp: (also gp:rbf, gp:matern, gp:periodic), drawn from Gaussian processes; digits:, images as functions of pixels."""
    context: tuple[Size, Size] = (3, 50)
    """Least and most points of a function that are known; the others are predicted."""
    max_points: Size = 200
    """Points of a function per step; of longer ones others are drawn each time."""
    batch_size: Size = 16
    """Functions per batch."""


@dataclass(frozen=True, kw_only=True)
class BandOptions(Bounded):
    """Picture."""

    kernel: str | None = None
    """Draw the exact posterior of this Gaussian process, too, such as rbf,length=0.4,noise=0.1 (kernels: rbf, matern, periodic)."""


class FunctionsTaskDeclaration(Declaration):
    """Train a neural process: functions, with uncertainty, from some of their values.

    As in:  regard train functions --out runs/functions
            regard train functions --data digits: --out runs/completion
            regard train functions --data series.csv --out runs/series
            regard train functions --model neural_process --out runs/plain
    """

    name = "functions"
    Options = FunctionsOptions
    PredictOptions = BandOptions
    default_model = "attentive_neural_process"
    default_train = TrainOptions(steps=3000, lr=1e-3, schedule="cosine", average=0, weight_decay=0.0)
    main_options = ("context",)

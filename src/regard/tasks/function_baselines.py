"""Baselines of functions: no function at all, the nearest known point; and the exact Gaussian process, which nothing beats on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..data.functions import Function
from ..errors import NotSupported
from .function_processor import FunctionProcessor


def function_baselines(processor: FunctionProcessor, functions: Sequence[Function]) -> dict[str, dict[str, float]]:
    """Metrics by name of the baseline.

    Args:
        processor: processor of the run.
        functions: functions whose known points come first.
    """
    mean_Y, std_Y = np.array(processor.y_mean), np.array(processor.y_std)
    constant, nearest = list[tuple[float, float]](), list[float]()
    for one in functions:
        y = one.y[one.context :].astype(np.float64)
        constant.append((float(_log_density(y, mean_Y, std_Y).mean()), float(np.square(y - mean_Y).mean())))
        if one.context:
            x = one.x.astype(np.float64) / np.array(processor.x_std)
            closest = np.square(x[one.context :, None] - x[None, : one.context]).sum(-1).argmin(1)
            nearest.append(float(np.square(y - one.y[closest]).mean()))
    densities, errors = zip(*constant, strict=True)
    found = {"mean and deviation of the training values": {"log_density": float(np.mean(densities)), "mse": float(np.mean(errors))}}
    if nearest:
        found["nearest known point"] = {"mse": float(np.mean(nearest))}
    if all(one.kernel is not None for one in functions):
        every = [exact(one) for one in functions]
        found["exact Gaussian process"] = {name: float(np.mean([each[name] for each in every])) for name in every[0]}
    return found


def exact(one: Function) -> dict[str, float]:
    """Metrics of the posterior of the Gaussian process that a function was drawn from.

    Args:
        one: function whose known points come first.
    """
    if one.kernel is None:
        raise NotSupported("a function that was not drawn from a kernel; expected one of gp:")
    known = one.context or 0
    x, y = torch.from_numpy(one.x).double(), torch.from_numpy(one.y).double()[:, 0]
    mean_T, std_T = (z.numpy() for z in one.kernel.posterior(x[:known], y[:known], x))
    y_T: Any = y.numpy()
    density = _log_density(y_T[known:, None], mean_T[known:, None], std_T[known:, None])
    squared = np.square(mean_T - y_T)
    return {
        "log_density": float(density.mean()),
        "mse": float(squared[known:].mean()),
        "context_mse": float(squared[:known].mean()) if known else 0.0,
    }


def _log_density(y: Any, mean: Any, std: Any) -> Any:
    return -(0.5 * np.square((y - mean) / std) + np.log(std) + 0.5 * math.log(2 * math.pi)).sum(-1)

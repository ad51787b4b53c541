"""Metrics of sets, and what a model of sets should beat: medians, linear fits, the farthest item, EM on each set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from ..baselines import fit_mixture
from ..data.sets import SetExample
from .set_processor import SetProcessor


def number_metrics(processor: SetProcessor, found_E: Any, examples: Sequence[SetExample]) -> dict[str, float]:
    """Mean absolute error, root mean square error; of counts also how many are right when rounded.

    Args:
        processor: processor of the run, which knows whether targets are counts.
        found_E: predicted numbers.
        examples: sets with their numbers.
    """
    true_E = np.array([one.target for one in examples], dtype=np.float64)
    errors = {"mae": float(np.abs(found_E - true_E).mean()), "rmse": float(np.sqrt(np.square(found_E - true_E).mean()))}
    return errors | ({"accuracy": float((np.round(found_E) == true_E).mean())} if processor.whole else {})


def set_baselines(processor: SetProcessor, train: Sequence[SetExample], examples: Sequence[SetExample]) -> dict[str, dict[str, float]]:
    """Metrics by name of the baseline.

    Args:
        processor: processor of the run, which knows the kind of target.
        train: training part.
        examples: sets to predict.
    """
    if processor.kind == "clusters":
        found = {}
        for name, components in (("one Gaussian per set", 1), (f"EM with {processor.components} components, 10 restarts", 0)):
            found[name] = {"log_likelihood": _mixture_density(examples, components or processor.components)}
        return found
    if processor.kind == "index":
        far = [int(np.square((one.items - one.items.mean(0)) / processor.std).sum(1).argmax()) for one in examples]
        right = [n == one.target for n, one in zip(far, examples, strict=True)]
        return {
            "chance": {"accuracy": float(np.mean([1 / len(one.items) for one in examples]))},
            "the item farthest from the mean": {"accuracy": float(np.mean(right))},
        }
    if processor.kind == "label":
        usual = Counter(one.target for one in train).most_common(1)[0][0]
        return {"most frequent label": {"accuracy": float(np.mean([one.target == usual for one in examples]))}}
    y_E = np.array([one.target for one in train], dtype=np.float64)
    factors, *_ = np.linalg.lstsq(_summary(train), y_E, rcond=None)
    return {
        "median": number_metrics(processor, np.full(len(examples), np.median(y_E)), examples),
        "linear in the mean and the number of items": number_metrics(processor, _summary(examples) @ factors, examples),
    }


def _summary(examples: Sequence[SetExample]) -> Any:
    """Mean of the items, their number, and a constant."""
    return np.array([[*one.items.mean(0), len(one.items), 1.0] for one in examples], dtype=np.float64)


def _mixture_density(examples: Sequence[SetExample], components: int) -> float:
    """Mean log-likelihood per item of mixtures fitted to each set."""
    x_BLI = pad_sequence([torch.from_numpy(one.items).double() for one in examples], batch_first=True)
    n_B = torch.tensor([len(one.items) for one in examples])
    density_BL = fit_mixture(x_BLI, n_B, components).log_density(x_BLI)
    here_BL = torch.arange(x_BLI.shape[1]) < n_B[:, None]
    return float(((density_BL * here_BL).sum(1) / n_B).mean())

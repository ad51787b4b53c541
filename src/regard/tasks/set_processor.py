"""Processor of sets: the units of their items and targets, and padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..baselines import Mixture
from ..data.sets import SetExample, TargetKind, whole
from .task import JsonProcessor


@dataclass(frozen=True)
class SetProcessor(JsonProcessor):
    """Kind of the target, and the units of items and numbers: both are standardised.

    Args:
        kind: kind of the target.
        mean: means of the items' coordinates.
        std: their standard deviations.
        y_mean: mean of the targets.
        y_std: their standard deviation.
        whole: all targets are whole numbers.
        labels: labels in order.
        components: components of a mixture.
    """

    kind: TargetKind
    mean: tuple[float, ...]
    std: tuple[float, ...]
    y_mean: float = 0.0
    y_std: float = 1.0
    whole: bool = False
    labels: tuple[str, ...] = ()
    components: int = 0

    FILE = "sets.json"

    @classmethod
    def of(cls, examples: Sequence[SetExample], kind: TargetKind, components: int) -> SetProcessor:
        items_EI = np.concatenate([one.items for one in examples]).astype(np.float64)
        std_I = items_EI.std(0)
        units = tuple(items_EI.mean(0).tolist()), tuple(np.where(std_I > 0, std_I, 1.0).tolist())
        if kind == "number":
            y_E = np.array([one.target for one in examples], dtype=np.float64)
            return cls(kind, *units, float(y_E.mean()), float(y_E.std()) or 1.0, whole(examples))
        if kind == "label":
            return cls(kind, *units, labels=tuple(sorted({str(one.target) for one in examples})))
        return cls(kind, *units, components=components if kind == "clusters" else 0)

    def encode(self, example: SetExample) -> Tensor:
        return ((torch.from_numpy(example.items).double() - torch.tensor(self.mean)) / torch.tensor(self.std)).float()

    def decode(self, mixture: Mixture) -> Mixture:
        """Mixture in the units of the items."""
        mean_I, std_I = (torch.tensor(x, dtype=torch.float64) for x in (self.mean, self.std))
        return Mixture(mixture.log_share_BC.double(), mixture.mean_BCI.double() * std_I + mean_I, mixture.std_BCI.double() * std_I)


class SetBatch(NamedTuple):
    """Sets of one batch, padded, and their targets: standardised numbers, or indices."""

    x_BLI: Tensor
    n_B: Tensor
    y_B: Tensor
    known_B: Tensor  # True where the target is known

"""Processor of functions: the units of places and values, the order in which points are known, and padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..data.functions import Function
from .task import JsonProcessor


@dataclass(frozen=True)
class FunctionProcessor(JsonProcessor):
    """Units of x and y: both are standardised.

    Args:
        x_mean: means of the coordinates of x.
        x_std: their standard deviations.
        y_mean: means of the coordinates of y.
        y_std: their standard deviations.
        low: least x.
        high: largest x.
        grid: rows and columns, if all functions have the same places on a grid.
    """

    x_mean: tuple[float, ...]
    x_std: tuple[float, ...]
    y_mean: tuple[float, ...]
    y_std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    grid: tuple[int, ...] = ()

    FILE = "functions.json"

    @classmethod
    def fit(cls, examples: Sequence[Function]) -> FunctionProcessor:
        x, y = (np.concatenate([one[n] for one in examples]).astype(np.float64) for n in (0, 1))
        units = [(tuple(z.mean(0).tolist()), tuple(np.where(z.std(0) > 0, z.std(0), 1.0).tolist())) for z in (x, y)]
        sizes = tuple(len(np.unique(column)) for column in examples[0].x.T)
        same = (
            len(sizes) == 2 and sizes[0] * sizes[1] == len(examples[0].x) and all(np.array_equal(one.x, examples[0].x) for one in examples)
        )
        return cls(*units[0], *units[1], tuple(x.min(0).tolist()), tuple(x.max(0).tolist()), sizes if same else ())

    def places(self, count: int = 100) -> npt.NDArray[np.float64]:
        """Places to show: the grid, or `count` of a line from the least to the largest x; of more coordinates none.

        Args:
            count: places on a line.
        """
        if self.grid or len(self.low) == 1:
            sides = [np.linspace(low, high, size) for low, high, size in zip(self.low, self.high, self.grid or (count,), strict=True)]
            return np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], 1)
        return np.zeros((0, len(self.low)))

    def encode(self, one: Function) -> tuple[Tensor, Tensor]:
        x, y = (torch.from_numpy(z).double() for z in (one.x, one.y))
        return tuple(
            ((z - torch.tensor(mean)) / torch.tensor(std)).float()
            for z, mean, std in ((x, self.x_mean, self.x_std), (y, self.y_mean, self.y_std))
        )  # type: ignore[return-value]  # two of them


class FunctionBatch(NamedTuple):
    """Functions of one batch, padded: of each, the first c_B points are known."""

    x_BLX: Tensor
    y_BLY: Tensor
    c_B: Tensor
    n_B: Tensor
    targets: int  # points of all functions
    unknown: int  # points that are not known
    known: int  # most known points of a function


def arranged(one: Function, number: int, context: tuple[int, int]) -> Function:
    """A function whose known points come first, as an evaluation has it: the same for each number.

    Args:
        one: function; an input is left as it is.
        number: number of the function in its part.
        context: least and most known points.
    """
    if one.context is not None:
        return one
    generator = np.random.default_rng([0, number])
    low, high = (min(size, len(one.x) - 1) for size in context)
    order = generator.permutation(len(one.x))
    return one._replace(x=one.x[order], y=one.y[order], context=low + number * 7 % (high - low + 1))


def drawn(one: Function, context: tuple[int, int], most: int, generator: torch.Generator) -> Function:
    """A function with points in a random order, of which a random number is known.

    Args:
        one: function.
        context: least and most known points.
        most: points that are kept.
        generator: random numbers.
    """
    order = torch.randperm(len(one.x), generator=generator)[:most].numpy()
    low, high = (min(size, len(order) - 1) for size in context)
    known = int(torch.randint(low, high + 1, (), generator=generator))
    return one._replace(x=one.x[order], y=one.y[order], context=known)


def collate(functions: Sequence[Function], processor: FunctionProcessor) -> FunctionBatch:
    """Batch of arranged functions.

    Args:
        functions: functions whose known points come first.
        processor: processor of the run.
    """
    pairs: Any = [processor.encode(one) for one in functions]
    sizes, known = [len(one.x) for one in functions], [one.context or 0 for one in functions]
    x_BLX, y_BLY = (pad_sequence(list(side), batch_first=True) for side in zip(*pairs, strict=True))
    return FunctionBatch(x_BLX, y_BLY, torch.tensor(known), torch.tensor(sizes), sum(sizes), sum(sizes) - sum(known), max(known))

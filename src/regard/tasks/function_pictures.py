"""Pictures of predicted functions: mean and band beside the exact posterior, weights as lines to the known points, images with what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..baselines import Kernel
from ..data.functions import Function
from ..look.axes import new_figure
from .function_processor import FunctionProcessor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, UNKNOWN = "#2060a0", "#d08020", (0.75, 0.83, 0.92)
COLUMNS = 3  # panels in a row


class Band(NamedTuple):
    """A prediction of a function, and what it is compared with."""

    x_known: Any  # places of the known values
    y_known: Any  # the values
    x: Any  # places of the prediction
    mean: Any  # means
    std: Any  # standard deviations
    exact: Any = None  # mean and deviation of the exact posterior at the places
    true: Any = None  # x and y of the function itself
    title: str = ""  # words above
    weights: Any = None  # place and weights of the known points, (x, y, weights)

    @classmethod
    def of(cls, one: Function, mean_TY: Any, std_TY: Any, kernel: Kernel | None = None, **more: Any) -> Band:
        """Band of an arranged function or of an input, with the exact posterior if there is a kernel.

        Args:
            one: function whose known points come first.
            mean_TY: means at all points.
            std_TY: deviations at all points.
            kernel: kernel of the exact posterior.
            **more: further fields.
        """
        known = one.context or 0
        posterior = None
        if kernel is not None and one.y.shape[1] == 1:
            x, y = torch.from_numpy(one.x).double(), torch.from_numpy(one.y).double()[:, 0]
            posterior = tuple(z.numpy() for z in kernel.posterior(x[:known], y[:known], x[known:]))
        return cls(one.x[:known], one.y[:known], one.x[known:], mean_TY[known:], std_TY[known:], posterior, **more)


def draw_bands(panels: Sequence[Band], columns: int = COLUMNS) -> Figure:
    """Mean and two standard deviations of functions of one variable; dashed: the exact posterior; lines: attention to known points.

    Args:
        panels: predictions.
        columns: panels in a row.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(3.6 * columns, 2.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axis in grid.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, one in zip(grid.flat, panels, strict=False):
        order = np.argsort(one.x[:, 0])
        x, mean, std = one.x[order, 0], one.mean[order, 0], one.std[order, 0]
        axis.fill_between(x, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.22, linewidth=0)
        axis.plot(x, mean, color=BLUE, linewidth=1.3)
        if one.exact is not None:
            middle, apart = (z[order] for z in one.exact)
            axis.plot(x, middle, color=ORANGE, linewidth=1, linestyle="--")
            for sign in (-2, 2):
                axis.plot(x, middle + sign * apart, color=ORANGE, linewidth=0.7, linestyle=":")
        if one.true is not None:
            axis.plot(*one.true, ".", color="0.6", markersize=2)
        if one.weights is not None:
            at_x, at_y, weights = one.weights
            for (px,), (py,), weight in zip(one.x_known, one.y_known, weights, strict=True):
                axis.plot([at_x, px], [at_y, py], color="#b03030", linewidth=4 * float(weight), alpha=0.7)
            axis.plot([at_x], [at_y], "o", color="#b03030", markersize=5)
        axis.plot(one.x_known[:, 0], one.y_known[:, 0], "ko", markersize=3)
        axis.set_title(one.title, fontsize=9)
        axis.tick_params(labelsize=7)
    return figure


def draw_pixels(panels: Sequence[Band], processor: FunctionProcessor) -> Figure:
    """A row per image: the known pixels, the mean, the standard deviation; the image itself last, if it is known.

    Args:
        panels: predictions at all pixels.
        processor: processor of the run, which knows the grid.
    """
    parts = 3 + any(one.true is not None for one in panels)
    figure = new_figure(1.7 * parts, 1.8 * len(panels))
    grid = figure.subplots(len(panels), parts, squeeze=False)
    scale = max(
        1e-9,
        *(float(np.max(shown, initial=0)) for one in panels for shown in (one.mean, one.y_known, () if one.true is None else one.true)),
    )
    spread = max(float(one.std.max()) for one in panels)
    for row, one in zip(grid, panels, strict=True):
        low, high = (np.array(side) for side in (processor.low, processor.high))
        steps = (high - low) / (np.array(processor.grid) - 1)
        known = np.full((*processor.grid, 3), UNKNOWN)
        for place, value in zip(np.round((one.x_known - low) / steps).astype(int), one.y_known[:, 0], strict=True):
            known[tuple(np.clip(place, 0, np.array(processor.grid) - 1))] = 1 - np.clip(value / scale, 0, 1)
        row[0].imshow(known)
        row[1].imshow(one.mean[:, 0].reshape(processor.grid), cmap="gray_r", vmin=0, vmax=scale)
        row[2].imshow(one.std[:, 0].reshape(processor.grid), cmap="Oranges", vmin=0, vmax=spread)
        if one.true is not None:
            row[3].imshow(np.asarray(one.true).reshape(processor.grid), cmap="gray_r", vmin=0, vmax=scale)
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_title(one.title or f"{len(one.x_known)} known", fontsize=8)
    for axis, title in zip(grid[0][1:], ("mean", "deviation", "image"), strict=False):
        axis.set_title(title, fontsize=8)
    return figure

"""Attention over an image: a panel per word, or per layer and head, in which the image is darkened where there is little weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..errors import ShapeError
from ._axes import new_figure
from .images import check_image
from .layouts import Grid
from .map import Map
from .terminal import head_matrix, readable

DARKEST = 0.8  # opacity of the black over patches without weight
MAX_PANELS = 64
Panel = tuple[str, Tensor | None]  # title, and weights (rows, columns) of the patches; None: the image alone


def draw_panels(image: Any, panels: Iterable[Panel], *, columns: int = 8, title: str = "") -> Figure:
    """The image once per panel, darkened where the weights are small; each panel is scaled by its own largest weight."""
    array, shown = check_image(image), list(panels)[:MAX_PANELS]
    columns = max(1, min(columns, len(shown)))
    rows = -(-len(shown) // columns)
    height = 1.6 * array.shape[0] / array.shape[1]
    figure = new_figure(1.6 * columns + 0.2, rows * (height + 0.32) + 0.5 * bool(title))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (name, weights) in zip(axes.flat, shown, strict=False):
        rows_, columns_ = array.shape[:2] if weights is None else weights.shape
        extent = (-0.5, columns_ - 0.5, rows_ - 0.5, -0.5)
        axis.imshow(array, cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto", interpolation="nearest")
        if weights is not None:
            share = (weights.float().clamp(min=0) / weights.float().max().clamp(min=1e-12)).numpy()
            black = np.zeros((*share.shape, 4), dtype=np.float32)
            black[..., 3] = DARKEST * (1 - share)
            smooth = "bilinear" if min(share.shape) > 3 else "nearest"
            axis.imshow(black, extent=extent, aspect="auto", interpolation=smooth)
        axis.set_title(readable(name, 24), fontsize=8, pad=2)
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def draw_maps(image: Any, maps: Sequence[Map], batch: int = 0, query: int | None = None) -> Figure:
    """Maps over the patches of an image: a panel per query if queries are words, else a panel per layer and head for one query.

    That query is the first token, the class token of an encoder, or `query`.
    """
    first = maps[0]
    if first.queries != first.keys and query is None:  # words that attend to patches
        names, _ = first.labels(batch)
        weights = head_matrix(first.head(), batch)
        panels: list[Panel] = [("", None), *((name, on_grid(first, row)) for name, row in zip(names, weights, strict=True))]
        return draw_panels(image, panels, title=first.layer)
    panels = [("", None)]
    for m in maps:
        at = 0 if query is None else m.rows.index(query)
        panels += [(f"{m.layer} {head}", on_grid(m, head_matrix(m.head(head), batch)[at])) for head in m.heads]
    return draw_panels(image, panels, columns=max(4, min(8, len(first.heads))))


def on_grid(m: Map, row_M: Tensor) -> Tensor:
    """One row of weights as (rows, columns) of the grid, without the tokens before it."""
    if not isinstance(m.layout, Grid):
        raise ShapeError(
            f"{m.layer} has the layout {type(m.layout).__name__}; expected a Grid of patches: maps.label(layout=Grid(rows, columns))"
        )
    every = torch.zeros(m.keys)
    every[torch.tensor(m.columns)] = row_M.float()
    return every[m.layout.prefix_tokens :].view(m.layout.rows, m.layout.columns)

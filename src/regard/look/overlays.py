"""Attention over an image: a panel per word, or per layer and head, in which the image is darkened where there is little weight.

Grey images are also tinted where there is much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ShapeError
from .axes import new_figure
from .images import check_image
from .layouts import Grid
from .map import MEAN, Map
from .maps import Maps
from .terminal import head_matrix, over_grid, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARKEST = 0.8  # opacity of the black over patches without weight
TINT = (1.0, 0.55, 0.1)  # orange, of patches with weight on a grey image
MAX_PANELS = 64
Panel = tuple[str, Tensor | None]  # title, and weights (rows, columns) of the patches; None: the image alone


def draw_panels(image: Any, panels: Iterable[Panel | None], *, columns: int = 8, title: str = "") -> Figure:
    """The image once per panel, darkened where the weights are small; each panel is scaled by its own largest weight.

    A list of images has one for each panel. None leaves a place empty.
    """
    shown = list(panels)[:MAX_PANELS]
    arrays = [check_image(one) for one in image] if isinstance(image, list) else [check_image(image)] * len(shown)
    array = arrays[0]
    aspect = array.shape[1] / array.shape[0]
    width = 1.6 * min(max(1.0, aspect), 4.0)  # frames side by side take as much room as they need
    columns = max(1, min(columns, len(shown), int(12.8 / width)))
    rows = -(-len(shown) // columns)
    figure = new_figure(width * columns + 0.2, rows * (width / aspect + 0.32) + 0.5 * bool(title))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, panel, array in zip(axes.flat, shown, arrays, strict=False):
        if panel is None:
            continue
        name, weights = panel
        rows_, columns_ = array.shape[:2] if weights is None else weights.shape
        extent = (-0.5, columns_ - 0.5, rows_ - 0.5, -0.5)
        patch = (array.shape[0] / rows_) / (array.shape[1] / columns_)  # its aspect: circles stay circles
        axis.imshow(array, cmap="gray", vmin=0, vmax=255, extent=extent, aspect=patch, interpolation="nearest")
        if weights is not None:
            share = (weights.float().clamp(min=0) / weights.float().max().clamp(min=1e-12)).numpy()
            black = np.zeros((*share.shape, 4), dtype=np.float32)
            black[..., 3] = DARKEST * (1 - share)
            smooth = "bilinear" if min(share.shape) > 3 and aspect < 3 else "nearest"  # not across the edges of frames
            axis.imshow(black, extent=extent, aspect=patch, interpolation=smooth)
            if array.ndim == 2:  # a grey image has no colours to hide, and on its black nothing can be darkened
                tint = np.concatenate([np.broadcast_to(np.array(TINT, dtype=np.float32), (*share.shape, 3)), 0.45 * share[..., None]], -1)
                axis.imshow(tint, extent=extent, aspect="auto", interpolation=smooth)
        axis.set_title(readable(name, 24), fontsize=8, pad=2)
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def draw_maps(image: Any, maps: Sequence[Map], batch: int = 0, query: int | None = None) -> Figure:
    """Maps over the patches of an image: a panel per query if queries are words, else a panel per layer and head.

    Those show what `query` attends to; if not given the class token, and without one the mean over all patches. Before them stands the
    rollout over all layers, if there are several.
    """
    first = maps[0]
    if first.queries != first.keys and query is None:  # words that attend to patches
        panels: list[Panel | None] = [("", None)]
        for m in maps:
            rows = zip(m.labels(batch)[0], head_matrix(m.head(), batch), strict=True)
            panels += [(name, on_grid(m, row)) for name, row in rows]
        return draw_panels(image, panels, title=", ".join(m.layer for m in maps))
    panels = [("", None)]
    if len(maps) > 1 and all(m.square and m.queries == first.queries for m in maps):
        rollout = Maps(maps).with_rollout().all[-1]
        panels.append(("rollout", on_grid(rollout, over_grid(rollout, batch, query))))
    columns = max(4, min(8, len(first.heads)))
    if len(first.heads) > 1:
        panels += [None] * (-len(panels) % columns)  # a row per layer
    for m in maps:
        panels += [(panel_name(m, head), on_grid(m, over_grid(m.head(head), batch, query))) for head in m.heads]
        if len(first.heads) > 1:
            panels += [None] * (-len(panels) % columns)
    return draw_panels(image, panels, columns=columns)


def panel_name(m: Map, head: int) -> str:
    """Layer and head, as in "layer 3, head 1"."""
    number = re.search(r"\d+", m.layer)
    layer = m.layer if number is None else f"layer {number[0]}"
    return layer if len(m.heads) == 1 and head == MEAN else f"{layer}, mean" if head == MEAN else f"{layer}, head {head}"


def over_patches(m: Map, batch: int = 0, query: int | None = None) -> Tensor:
    """Weights of `query`, else the class token, else all patches on average, as (rows, columns) of the grid; the mean of heads."""
    return on_grid(m, over_grid(m.head(), batch, query))


def on_grid(m: Map, row_M: Tensor) -> Tensor:
    """One row of weights as (rows, columns) of the grid, without the tokens before it."""
    if not isinstance(m.layout, Grid):
        raise ShapeError(
            f"{m.layer} has the layout {type(m.layout).__name__}; expected a Grid of patches: maps.label(layout=Grid(rows, columns))"
        )
    every = torch.zeros(m.keys)
    every[torch.tensor(m.columns)] = row_M.float()
    return m.layout.side_by_side(every)

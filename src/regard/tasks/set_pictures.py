"""Pictures of sets: clusters as ellipses over the points, and lines from seeds or inducing points to items, as wide as their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from .._extras import extra
from ..baselines import Mixture
from ..data.sets import Items
from ..look import Map
from ..look.axes import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4  # panels in a row
LEAST = 0.02  # weight of a line that is drawn


def draw_clusters(panels: Sequence[tuple[Items, Mixture, str]]) -> Figure:
    """Points in the plane, in the colour of the component that they most likely belong to; ellipses of one and two standard deviations.

    Args:
        panels: items, a mixture of one set, and a title, each.
    """
    with extra("look"):
        from matplotlib.patches import Ellipse

    rows = -(-len(panels) // COLUMNS)
    columns = min(COLUMNS, len(panels))
    figure = new_figure(3.0 * columns, 3.0 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axis in grid.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (items, mixture, title) in zip(grid.flat, panels, strict=False):
        which_L = mixture.joint(torch.from_numpy(items).double()[None])[0].argmax(-1).numpy()
        axis.scatter(*items.T, c=[f"C{c % 10}" for c in which_L], s=7)
        for c, (share, mean, std) in enumerate(
            zip(mixture.log_share_BC[0].exp().tolist(), mixture.mean_BCI[0], mixture.std_BCI[0], strict=True)
        ):
            for times in (1, 2):
                width, height = (2 * times * std).tolist()
                axis.add_patch(
                    Ellipse(
                        tuple(mean.tolist()), width, height, fill=False, edgecolor=f"C{c % 10}", alpha=float(np.clip(4 * share, 0.15, 1))
                    )
                )
        axis.set_title(title, fontsize=9)
        axis.set_aspect("equal")
        axis.tick_params(labelsize=7)
    return figure


def draw_links(maps: Sequence[tuple[Map, str]], images: Sequence[Items] | None = None) -> Figure:
    """Queries above, keys below, a line per weight; the mean of the heads.

    Args:
        maps: maps with a title each, of one set per panel.
        images: square images of the items, of sets of images; they are drawn instead of the names.
    """
    columns = min(COLUMNS, len(maps))
    rows = -(-len(maps) // columns)
    wide = max(m.keys for m, _ in maps)
    figure = new_figure(max(2.6, 0.36 * wide) * columns, 2.0 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for n, (axis, (m, title)) in enumerate(zip(grid.flat, maps, strict=False)):
        weights_LM = m.head().weights_BHLM[0, 0]
        queries, keys = m.labels()
        at_L, at_M = (np.arange(k) - (k - 1) / 2 for k in weights_LM.shape)
        for i, row in enumerate(weights_LM.tolist()):
            for j, weight in enumerate(row):
                if weight >= LEAST:
                    axis.plot([at_L[i], at_M[j]], [1, 0], color="#3060a0", linewidth=5 * weight, alpha=min(1.0, 0.15 + weight))
        for i, name in enumerate(queries):
            axis.text(at_L[i], 1.06, name, ha="center", va="bottom", fontsize=7)
        for j, name in enumerate(keys):
            if images is None:
                axis.text(at_M[j], -0.06, name, ha="center", va="top", fontsize=7)
                continue
            side = round(len(images[n][j]) ** 0.5)
            inset = axis.inset_axes((at_M[j] - 0.45, -0.75, 0.9, 0.65), transform=axis.transData)
            inset.imshow(images[n][j].reshape(side, side), cmap="gray_r")
            inset.set_axis_off()
        half = max(len(at_L), len(at_M)) / 2 + 0.3
        axis.set_xlim(-half, half)
        axis.set_ylim(-0.8 if images is not None else -0.3, 1.35)
        axis.set_title(title, fontsize=8)
    return figure

"""Pen strokes as SVG and PNG: each in the colour of the letter that was attended to, and below them the path of the window over the text."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ._axes import new_figure

Points = npt.NDArray[np.float32]  # (L, 3): dx, dy, lifted
Weights = npt.NDArray[np.float32]  # (L, characters + 1): of each point over the text and its end; (L, 0) without a text
HEIGHT = 120.0  # of an SVG line, in pixels
COLOURS = colormaps["tab10"]
END = "⏎"


def pen_path(points: Points) -> list[npt.NDArray[np.float64]]:
    """The strokes as positions, (L, 2) each."""
    at = points[:, :2].astype(np.float64).cumsum(0)
    return [stroke for stroke in np.split(at, np.flatnonzero(points[:, 2] > 0.5) + 1) if len(stroke)]


def to_svg(points: Points, text: str = "", weights: Weights | None = None) -> str:
    """An SVG page: group `strokes` with a path per stroke, and group `window` with the attended position of each point."""
    strokes = pen_path(points)
    every = np.concatenate(strokes)
    low, high = every.min(0), every.max(0)
    scale = HEIGHT / max(high[1] - low[1], 1e-6)
    scale = min(scale, 4000 / max(high[0] - low[0], 1e-6))
    margin, width = 10.0, float((high[0] - low[0]) * scale)
    height = float((high[1] - low[1]) * scale)

    def line(positions: npt.NDArray[np.float64]) -> str:
        placed = (positions - low) * scale + margin
        return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in placed)

    # a stroke of one point is a dot: a line of no length with round ends
    paths = [f'<path d="{line(stroke if len(stroke) > 1 else stroke.repeat(2, 0))}"/>' for stroke in strokes]
    parts = [
        '<g id="strokes" fill="none" stroke="#1a1a2e" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round">',
        *paths,
        "</g>",
    ]
    bottom = height + 2 * margin
    if weights is not None and weights.shape[1]:
        letters, row = [*text, END], 14.0
        attended = _attended(weights)
        across = np.linspace(0, width, len(attended)) if len(attended) > 1 else np.zeros(1)
        path = "M" + "L".join(f"{x + margin:.1f},{bottom + row * (u + 0.5):.1f}" for x, u in zip(across, attended, strict=True))
        parts.append('<g id="window" font-family="sans-serif" font-size="11" fill="#666">')
        parts += [
            f'<text x="{margin + width + 6:.1f}" y="{bottom + row * (n + 0.5) + 4:.1f}">{escape(letter)}</text>'
            for n, letter in enumerate(letters)
        ]
        parts += [f'<path d="{path}" fill="none" stroke="#d1495b" stroke-width="1.5"/>', "</g>"]
        bottom += row * len(letters) + margin
    size = f"{width + 2 * margin + 18:.0f} {bottom:.0f}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{size.split()[0]}" height="{size.split()[1]}">'
    return "\n".join([head, f"<title>{escape(text)}</title>" if text else "", *parts, "</svg>", ""])


def draw_strokes(points: Points, text: str = "", weights: Weights | None = None) -> Figure:
    """The strokes above the window: a row per character, a column per point, whose weights are scaled to sum to one."""
    strokes = pen_path(points)
    every = np.concatenate(strokes)
    ratio = float(np.ptp(every[:, 0]) / max(np.ptp(every[:, 1]), 1e-6))
    width = float(np.clip(1.3 * ratio, 4, 14))
    shown = weights is not None and weights.shape[1] > 0
    letters = [*text.replace(" ", "␣"), END]
    above, below = width / max(ratio, 1.0) + 0.3, 0.17 * len(letters) + 0.6
    figure = new_figure(width, above + below if shown else above)
    axes = figure.subplots(2, 1, height_ratios=(above, below)) if shown else [figure.subplots()]
    colours = np.full((len(points), 4), (0.1, 0.1, 0.18, 1.0))
    if shown:
        assert weights is not None
        colours = COLOURS(weights.argmax(1) % 10)
        axes[1].imshow(_shares(weights).T, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes[1].scatter(np.arange(len(points)), weights.argmax(1), c=colours, s=5)
        axes[1].set_yticks(range(len(letters)), letters, fontsize=8, parse_math=False)
        axes[1].set_xlabel("pen point", fontsize=8)
        axes[1].tick_params(labelsize=7, length=2)
    begin = 0
    for stroke in strokes:
        pairs = np.stack([stroke[:-1], stroke[1:]], 1) if len(stroke) > 1 else stroke[None].repeat(2, 1)
        own = colours[begin + 1 : begin + len(stroke)] if len(stroke) > 1 else colours[begin : begin + 1]
        axes[0].add_collection(LineCollection(list(pairs), colors=own, linewidths=1.8, capstyle="round"))
        begin += len(stroke)
    axes[0].set_xlim(every[:, 0].min() - 0.5, every[:, 0].max() + 0.5)
    axes[0].set_ylim(every[:, 1].max() + 0.5, every[:, 1].min() - 0.5)
    axes[0].set_aspect("equal")
    axes[0].set_axis_off()
    return figure


def _attended(weights: Weights) -> Sequence[float]:
    """The mean position of the window at each point, from 0."""
    return (_shares(weights) @ np.arange(weights.shape[1])).tolist()


def _shares(weights: Weights) -> Weights:
    return weights / weights.sum(1, keepdims=True).clip(min=1e-9)

"""Pen strokes as SVG and PNG: each in the colour of the letter that was attended to, and below them the path of the window over the text.

Between its points a pen moves in a curve: strokes are drawn as cubic Bézier curves through all points, straight on at corners.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from .._extras import extra
from ..look.axes import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = npt.NDArray[np.float32]  # (L, 3): dx, dy, lifted
Weights = npt.NDArray[np.float32]  # (L, characters + 1): of each point over the text and its end; (L, 0) without a text
HEIGHT = 120.0  # of an SVG line, in pixels
END = "⏎"
CORNER = 0.0  # cosine of the angle from which a turn is a corner: a right angle
PIECES = np.linspace(0, 1, 9)[:, None]  # of a curve between two points, as a raster picture draws it


def pen_path(points: Points) -> list[npt.NDArray[np.float64]]:
    """The strokes as positions, (L, 2) each."""
    at = points[:, :2].astype(np.float64).cumsum(0)
    return [stroke for stroke in np.split(at, np.flatnonzero(points[:, 2] > 0.5) + 1) if len(stroke)]


def beziers(stroke: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Four control points (L − 1, 4, 2) of the curve from each point to the next.

    At a point the curve goes in the mean direction of the two chords that meet there; at a corner, in that of its own chord.
    """
    chords = np.diff(stroke, axis=0)
    lengths = np.linalg.norm(chords, axis=1, keepdims=True)
    along = chords / lengths.clip(min=1e-9)
    means = along[:-1] + along[1:]
    means /= np.linalg.norm(means, axis=1, keepdims=True).clip(min=1e-9)
    smooth = (along[:-1] * along[1:]).sum(1, keepdims=True) > CORNER
    leave, arrive = along.copy(), along.copy()
    leave[1:], arrive[:-1] = np.where(smooth, means, along[1:]), np.where(smooth, means, along[:-1])
    return np.stack([stroke[:-1], stroke[:-1] + leave * lengths / 3, stroke[1:] - arrive * lengths / 3, stroke[1:]], 1)


def curves(stroke: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The curve from each point to the next, (L − 1, 9, 2); a stroke of one point is a dot, a curve of no length."""
    a, b, c, d = beziers(stroke if len(stroke) > 1 else stroke.repeat(2, 0))[:, :, None].swapaxes(0, 1)
    t = PIECES
    return np.asarray((1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t**2 * c + t**3 * d)


def to_svg(points: Points, text: str = "", weights: Weights | None = None) -> str:
    """An SVG page: group `strokes` with a path per stroke, and group `window` with the attended position of each point."""
    strokes = pen_path(points)
    every = np.concatenate(strokes)
    low, high = every.min(0), every.max(0)
    scale = HEIGHT / max(high[1] - low[1], 1e-6)
    scale = min(scale, 4000 / max(high[0] - low[0], 1e-6))
    margin, width = 10.0, float((high[0] - low[0]) * scale)
    height = float((high[1] - low[1]) * scale)

    def curve(stroke: npt.NDArray[np.float64]) -> str:
        placed = (beziers(stroke if len(stroke) > 1 else stroke.repeat(2, 0)) - low) * scale + margin  # one point: a dot with round ends
        first, rest = placed[0, 0], placed[:, 1:].reshape(-1, 6)
        return f"M{first[0]:.1f},{first[1]:.1f}" + "".join("C" + " ".join(f"{x:.1f}" for x in six) for six in rest)

    paths = [f'<path d="{curve(stroke)}"/>' for stroke in strokes]
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
    with extra("look"):
        from matplotlib import colormaps
        from matplotlib.collections import LineCollection

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
        colours = colormaps["tab10"](weights.argmax(1) % 10)
        axes[1].imshow(_shares(weights).T, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes[1].scatter(np.arange(len(points)), weights.argmax(1), c=colours, s=5)
        axes[1].set_yticks(range(len(letters)), letters, fontsize=8, parse_math=False)
        axes[1].set_xlabel("pen point", fontsize=8)
        axes[1].tick_params(labelsize=7, length=2)
    begin = 0
    for stroke in strokes:
        own = colours[begin + 1 : begin + len(stroke)] if len(stroke) > 1 else colours[begin : begin + 1]
        axes[0].add_collection(LineCollection(list(curves(stroke)), colors=own, linewidths=1.8, capstyle="round"))
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

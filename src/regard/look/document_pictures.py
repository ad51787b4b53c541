"""A document with attention on two levels as a picture: a bar per sentence, and its words shaded."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ._axes import colours, drawable, new_figure, set_title
from .documents import DrawnDocument
from .map import Map
from .terminal import display_width

COLUMNS = 92  # characters per line
MARGIN = 14.0  # columns for the bars and their numbers
LINE = 0.19  # inches


def draw_document(m: Map, batch: int = 0) -> Figure:
    """The sentences with the largest weights; the darkest word has the largest √(weight of its sentence) × weight in it."""
    drawn = DrawnDocument.of(m, batch, COLUMNS)
    shades, top, colour = drawn.shade_T.tolist(), drawn.largest_sentence or 1.0, colours(False)
    lines = sum(len(one.lines) + bool(one.left_out) for one in drawn.sentences) + bool(drawn.left_out)
    figure = new_figure(11.0, LINE * (lines + 0.5 * len(drawn.sentences)) + 1.0)
    axis = figure.subplots()
    y = 0.0
    for one in drawn.sentences:
        y = _gap(axis, y, one.left_out)
        tall = len(one.lines)
        axis.add_patch(Rectangle((-1.0 - 8.0 * one.weight / top, y + 0.1), 8.0 * one.weight / top, tall - 0.2, color="tab:orange"))
        axis.text(-9.6, y + 0.5, f"{one.weight:.3f}", ha="right", va="center", fontsize=8)
        for line in one.lines:
            for p in line:
                shade = shades[p.token]
                wide = display_width(p.text)
                axis.add_patch(Rectangle((p.column - 0.3, y + 0.04), wide + 0.6, 0.92, color=colour.to_rgba(shade * 0.85), linewidth=0))
                (text,), style = drawable([p.text])
                style["fontfamily"] = ["DejaVu Sans Mono", *style["fontfamily"]]
                axis.text(
                    p.column + wide / 2,
                    y + 0.5,
                    text,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if shade > 0.7 else "0.1",
                    **style,
                )
            y += 1
        y += 0.5
    y = _gap(axis, y, drawn.left_out)
    axis.set_xlim(-MARGIN, COLUMNS + 1)
    axis.set_ylim(max(y, 1.0), -0.2)
    axis.set_axis_off()
    set_title(figure, m, "bars: weights of sentences; shades: √(weight of the sentence) × weight of the word")
    return figure


def _gap(axis: object, y: float, sentences: int) -> float:
    """A line for sentences that are not drawn; the next y."""
    if not sentences:
        return y
    text = f"… {sentences:,} {'sentence' if sentences == 1 else 'sentences'} of smaller weight"
    axis.text(0, y + 0.5, text, va="center", fontsize=8, color="0.45")  # type: ignore[attr-defined]
    return y + 1.5

"""Small multiples: maps of layers × heads, and a summary of each."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ._axes import DPI, SEQUENTIAL, SMALLEST, add_colorbar, drawable, new_figure, paint, set_heading, set_ticks
from .maps import MEAN, Map
from .scales import Scale, ScaleName
from .summary import Stack, distances, entropies, stacks
from .terminal import batch_row, head_matrix, pool

MAX_PANELS = (12, 12)  # layers and heads
MAX_SIDE = 15.0  # inches that all panels take together


def draw_overview(maps: list[Map], batch: int = 0, scale: ScaleName = "row") -> Figure:
    """A row per layer, a column per head; tokens beside the outer panels where they fit, else positions; one colour scale for all."""
    left_out = len(maps) > MAX_PANELS[0] or any(len(m.heads) > MAX_PANELS[1] for m in maps)
    maps = maps[: MAX_PANELS[0]]
    columns = min(max((len(m.heads) for m in maps), default=1), MAX_PANELS[1])
    flat = [min(max(len(m.rows) / max(len(m.columns), 1), 0.25), 1.6) for m in maps]
    side = _panel_side(max(len(m.columns) for m in maps), MAX_SIDE / max(columns, sum(flat)))
    figure = new_figure(max((side + 0.1) * columns + 2.4, 4.2), sum(side * f + 0.4 for f in flat) + 1.5)
    axes = figure.subplots(len(maps), columns, squeeze=False, gridspec_kw={"height_ratios": flat})
    weights = [batch_row(m, batch)[:columns] for m in maps]
    fitted, signed = Scale.fit(scale, weights), any(m.signed for m in maps)
    for row, (line, m, weights_HLM) in enumerate(zip(axes, maps, weights, strict=True)):
        cell = min(side / max(len(m.columns), 1), side * flat[row] / max(len(m.rows), 1))
        block = -(-max(weights_HLM.shape[1:]) // int(0.9 * side * DPI))
        queries, keys = m.labels(batch)
        below = row == len(maps) - 1 or maps[row + 1].labels(batch)[1] != keys  # else the panel below has the same
        for n, axis in enumerate(line):
            if n >= len(m.heads):
                axis.set_axis_off()
                continue
            paint(axis, pool(fitted.shades(weights_HLM[n]), block, block), m, signed)
            axis.set_xticks([])
            axis.set_yticks([])
            if below:
                set_ticks(axis, "x", keys, m.columns, block, cell * len(keys), bool(m.key_labels))
            if n == 0:
                set_ticks(axis, "y", queries, m.rows, block, cell * len(queries), bool(m.query_labels))
            axis.set_title("mean of heads" if m.heads[n] == MEAN else f"head {m.heads[n]}", fontsize=8, pad=3)
        (name,), style = drawable([_break_name(m.layer, int(side * flat[row] * 72 / 5)) + ("" if m.normalised else "\nrows ≠ 1")])
        line[0].set_ylabel(name, fontsize=8, **style)
    add_colorbar(figure, axes.ravel().tolist(), fitted, signed, aspect=30, shrink=min(1.0, 4.0 / (side * sum(flat))))
    kinds = ", ".join(dict.fromkeys(m.mechanism for m in maps))
    note = "" if all(m.normalised for m in maps) else "\nrows marked ≠ 1 do not sum to one"
    note += "\nonly the first layers and heads" if left_out else ""
    set_heading(figure, f"{kinds}: rows attend to columns{note}")
    return figure


def _panel_side(tokens: int, most: float) -> float:
    """Inches: room for the labels of all tokens if that is no more than `most`."""
    least = tokens * SMALLEST / 72
    return min(max(0.15 * tokens, 1.7), max(3.4, 1.2 * least), most) if least <= most else min(3.4, most)


def _break_name(name: str, width: int) -> str:
    """A layer's path on several lines, broken at its dots."""
    lines = [""]
    for part in name.replace(".", ".\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def draw_summary(maps: list[Map], batch: int = 0) -> Figure:
    """A row per stack of layers: entropy and mean distance of each head, layers × heads, and the rollout of the stack."""
    groups = stacks(maps)
    rollouts = [stack.rollout() for stack in groups]
    heads = max((len(m.heads) for m in maps), default=1)
    wide = min(max(0.42 * heads, 1.8), 6.0)
    maps_side = [_panel_side(len(r.columns), 6.0) if r is not None else 0.0 for r in rollouts]
    high = [max(min(max(0.3 * len(stack.maps), 0.6), 5.0) + 1.0, side + 1.0) for stack, side in zip(groups, maps_side, strict=True)]
    last = max(maps_side, default=0.0)
    widths = [wide, wide, last] if last else [wide, wide]
    figure = new_figure(sum(widths) + 1.1 * len(widths) + 0.6, sum(high) + 0.6)
    axes = figure.subplots(len(groups), len(widths), squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": high})
    for line, stack, rollout, side in zip(axes, groups, rollouts, maps_side, strict=True):
        _draw_heads(line[0], stack, "entropy (nats)", entropies(stack, batch))
        _draw_heads(line[1], stack, "mean distance (positions)", distances(stack, batch))
        (name,), style = drawable([_break_name(stack.name, 24)])
        line[0].set_ylabel(f"{name}\nlayer", fontsize=8, **style)
        if rollout is not None:
            _draw_rollout(line[2], rollout, batch, side)
        elif last:
            line[2].set_axis_off()
    set_heading(figure, "Attention per head, and rollout: how much of each input reaches each position of the top layer")
    return figure


def _draw_heads(axis: Any, stack: Stack, what: str, values: list[list[float]]) -> None:
    """Layers × heads, the numbers in the cells where they fit."""
    if not any(values):
        axis.set_axis_off()
        return
    heads = max(map(len, values))
    table = [row + [float("nan")] * (heads - len(row)) for row in values]
    top = max((value for row in values for value in row), default=0.0)
    axis.imshow(table, cmap=SEQUENTIAL, vmin=0.0, vmax=top or 1.0, aspect="auto", interpolation="nearest")
    small = heads > 12 or len(values) > 24
    for y, row in enumerate([] if small else values):
        for x, value in enumerate(row):
            axis.text(x, y, f"{value:.3g}", ha="center", va="center", fontsize=7, color="white" if value > 0.6 * top else "0.15")
    if small:
        axis.figure.colorbar(axis.images[0], ax=axis, pad=0.02).ax.tick_params(labelsize=7)
    every = max(1, heads // 12)
    axis.set_xticks(range(0, heads, every), [stack.head_name(n).removeprefix("head ") for n in range(0, heads, every)], fontsize=7)
    axis.set_yticks(range(len(values)), stack.numbers, fontsize=7)
    axis.tick_params(length=2, pad=2)
    axis.set_xlabel("head", fontsize=8)
    axis.set_title(what, fontsize=8, pad=3)


def _draw_rollout(axis: Any, m: Map, batch: int, side: float) -> None:
    weights = head_matrix(m, batch)
    block = -(-max(weights.shape) // int(0.9 * side * DPI))
    paint(axis, pool(Scale.fit("row", [weights]).shades(weights), block, block), m, m.signed)
    queries, keys = m.labels(batch)
    set_ticks(axis, "x", keys, m.columns, block, side, bool(m.key_labels))
    set_ticks(axis, "y", queries, m.rows, block, side, bool(m.query_labels))
    axis.set_title("rollout ÷ largest of its row", fontsize=8, pad=3)

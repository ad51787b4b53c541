"""Small multiples: maps of layers × heads; entropy and mean distance of each head, and the rollout of a stack of layers."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .axes import DPI, SEQUENTIAL, SMALLEST, add_colorbar, drawable, new_figure, paint, set_heading, set_ticks
from .map import MEAN, Map
from .maps import Maps
from .scales import ScaleName, shaded
from .terminal import batch_row, head_matrix, to_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PANELS = (12, 12)  # layers and heads
MAX_SIDE = 14.0  # inches that all panels take together


def draw_overview(maps: list[Map], batch: int = 0, scale: ScaleName = "row") -> Figure:
    """A row per layer, a column per head; tokens beside the outer panels where they fit, else positions; one colour scale for all."""
    left_out = len(maps) > MAX_PANELS[0] or any(len(m.heads) > MAX_PANELS[1] for m in maps)
    maps = maps[: MAX_PANELS[0]]
    columns = min(max((len(m.heads) for m in maps), default=1), MAX_PANELS[1])
    flat = [min(max(len(m.rows) / max(len(m.columns), 1), 0.25), 1.6) for m in maps]
    side = _panel_side(max(len(m.columns) for m in maps), MAX_SIDE / max(columns, sum(flat)))
    longest = min(max((len(label) for m in maps for label in m.labels(batch)[0]), default=0), 18)
    figure = new_figure(max((side + 0.22) * columns + 1.3 + 0.07 * longest, 4.2), sum(side * f + 0.35 for f in flat) + 1.2)
    axes = figure.subplots(len(maps), columns, squeeze=False, gridspec_kw={"height_ratios": flat})
    weights = [batch_row(m, batch)[:columns] for m in maps]
    blocks = [_block(x.shape[1], x.shape[2], side) for x in weights]
    fitted, shades = shaded(weights, [(block, block) for block in blocks], scale)
    signed = any(m.signed for m in maps)
    for row, (line, m, shades_HLM, block) in enumerate(zip(axes, maps, shades, blocks, strict=True)):
        cell = min(side / max(len(m.columns), 1), side * flat[row] / max(len(m.rows), 1))
        queries, keys = m.labels(batch)
        below = row == len(maps) - 1 or maps[row + 1].labels(batch)[1] != keys  # else the panel below has the same
        for n, axis in enumerate(line):
            if n >= len(m.heads):
                axis.set_axis_off()
                continue
            paint(axis, shades_HLM[n], m, signed)
            axis.set_xticks([])
            axis.set_yticks([])
            if below:
                set_ticks(axis, "x", keys, m.columns, block, cell * len(keys), bool(m.key_labels))
            if n == 0:
                set_ticks(axis, "y", queries, m.rows, block, cell * len(queries), bool(m.query_labels))
            axis.set_title("mean of heads" if m.heads[n] == MEAN else f"head {m.heads[n]}", fontsize=8, pad=3)
        (name,), style = drawable([_short_name(m.layer, int(side * flat[row] * 72 / 5)) + ("" if m.normalised else "\nrows ≠ 1")])
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


def _block(rows: int, columns: int, side: float) -> int:
    """Rows and columns that share a cell: cells are larger than the pixels of a panel of `side` inches, so that none is lost."""
    return max(1, -(-max(rows, columns) // int(0.6 * side * DPI)))


def _short_name(layer: str, width: int) -> str:
    """A layer's path as `capture(layers=…)` takes it, on several lines, broken at dots."""
    lines = [""]
    for part in layer.removesuffix(".attention").replace(".", ".\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > max(width, 10):
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


# -- statistics per head -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerStack:
    """Layers whose paths differ only in numbers, as blocks.0.attention and blocks.1.attention."""

    name: str  # blocks.*.attention
    numbers: tuple[str, ...]  # numbers of its layers
    maps: tuple[Map, ...]

    def head_name(self, n: int) -> str:
        heads = max((m.heads for m in self.maps), key=len)
        return "mean" if heads[n] == MEAN else f"head {heads[n]}"

    def rollout(self) -> Map | None:
        """Rollout as one map; None unless all its layers are complete self-attentions of one length."""
        first, last = self.maps[0], self.maps[-1]
        if any(not m.square or m.queries != first.queries or m.run != first.run for m in self.maps):
            return None
        weights_BHLM = Maps(self.maps).rollout()[:, None]
        about = f"{len(self.maps)} layers" if len(self.maps) > 1 else "1 layer"
        return replace(last, layer=f"rollout of {self.name}", mechanism=about, heads=(MEAN,), weights_BHLM=weights_BHLM, normalised=True)


def stacks(maps: list[Map]) -> list[LayerStack]:
    """Stacks of layers, in order of first call."""
    groups: dict[str, list[Map]] = {}
    for m in maps:
        groups.setdefault(re.sub(r"\d+", "*", m.layer), []).append(m)
    return [LayerStack(name, tuple(".".join(re.findall(r"\d+", m.layer)) for m in some), tuple(some)) for name, some in groups.items()]


def entropies(stack: LayerStack, batch: int) -> list[list[float]]:
    """Entropies in nats, by layer and head."""
    return [m.entropy()[batch].tolist() for m in stack.maps]


def distances(stack: LayerStack, batch: int) -> list[list[float]]:
    """Mean distances in positions, by layer and head; nothing where queries and keys are different sequences."""
    return [m.distance()[batch].tolist() for m in stack.maps] if all(m.queries == m.keys for m in stack.maps) else []


def summary_text(maps: list[Map], batch: int = 0, columns: int | None = None) -> str:
    """Tables of entropy and mean distance, and the rollout as a map."""
    columns = columns or shutil.get_terminal_size((100, 30)).columns
    parts = []
    for stack in stacks(maps):
        parts.append(f"{stack.name}: {', '.join(dict.fromkeys(m.mechanism for m in stack.maps))}")
        parts += _table(stack, "Entropy in nats; 0: one key has all the weight", entropies(stack, batch), columns)
        parts += _table(stack, "Mean distance in positions between a query and its keys", distances(stack, batch), columns)
        rollout = stack.rollout()
        if rollout is not None:
            parts += [to_text(rollout, batch, columns), ""]
    return "\n".join(parts).rstrip()


def _table(stack: LayerStack, heading: str, values: list[list[float]], columns: int) -> list[str]:
    """A line per layer, a column per head; heads that do not fit go below."""
    if not any(values):
        return []
    cells = [[f"{value:.2f}" for value in row] for row in values]
    names = [stack.head_name(n) for n in range(max(map(len, cells)))]
    wide = 1 + max(map(len, [*names, *(cell for row in cells for cell in row), "head 0"]))
    margin = max(map(len, ["layer", *stack.numbers]))
    lines, at_once = [heading], max(1, (columns - margin) // (wide + 1))
    for first in range(0, len(names), at_once):
        for number, row in zip(("layer", *stack.numbers), (names, *cells), strict=True):
            lines.append(number.rjust(margin) + "".join(cell.rjust(wide + 1) for cell in row[first : first + at_once]))
    return [*lines, ""]


def draw_summary(maps: list[Map], batch: int = 0) -> Figure:
    """A row per stack of layers: entropy and mean distance of each head, layers × heads, and the rollout of the stack."""
    groups = stacks(maps)
    rollouts = [stack.rollout() for stack in groups]
    heads = max((len(m.heads) for m in maps), default=1)
    wide = min(max(0.45 * heads, 1.6), 6.0)
    maps_side = [_panel_side(len(r.columns), 6.0) if r is not None else 0.0 for r in rollouts]
    high = [max(_table_height(stack), side) + 1.0 for stack, side in zip(groups, maps_side, strict=True)]
    last = max(maps_side, default=0.0)
    widths = [wide, wide, last] if last else [wide, wide]
    figure = new_figure(sum(widths) + 1.1 * len(widths) + 0.6, sum(high) + 0.6)
    axes = figure.subplots(len(groups), len(widths), squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": high})
    for line, stack, rollout, side in zip(axes, groups, rollouts, maps_side, strict=True):
        for axis, what, values in (
            (line[0], "entropy (nats)", entropies(stack, batch)),
            (line[1], "mean distance (positions)", distances(stack, batch)),
        ):
            _draw_heads(axis, stack, what, values)
            axis.set_box_aspect(_table_height(stack) / wide)
            axis.set_anchor("N")
        (name,), style = drawable([_short_name(stack.name, 24)])
        line[0].set_ylabel(f"{name}\nlayer", fontsize=8, **style)
        if rollout is not None:
            _draw_rollout(line[2], rollout, batch, side)
        elif last:
            line[2].set_axis_off()
    set_heading(figure, "Attention per head, and rollout: how much of each input reaches each position of the top layer")
    return figure


def _table_height(stack: LayerStack) -> float:
    return min(max(0.3 * len(stack.maps), 0.4), 5.0)


def _draw_heads(axis: Any, stack: LayerStack, what: str, values: list[list[float]]) -> None:
    """Layers × heads, the numbers in the cells where they fit."""
    if not any(values):
        axis.set_axis_off()
        return
    heads = max(map(len, values))
    table = [row + [float("nan")] * (heads - len(row)) for row in values]
    top = max((value for row in values for value in row), default=0.0)
    axis.imshow(table, cmap=SEQUENTIAL, vmin=0.0, vmax=1.5 * top or 1.0, aspect="auto", interpolation="nearest")
    small = heads > 12 or len(values) > 24
    for y, row in enumerate([] if small else values):
        for x, value in enumerate(row):
            axis.text(x, y, f"{value:.3g}" if value < 100 else f"{value:.0f}", ha="center", va="center", fontsize=7, color="black")
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
    block = _block(weights.shape[0], weights.shape[1], side)
    _, (shades,) = shaded([weights], [(block, block)], "row")
    paint(axis, shades, m, m.signed)
    queries, keys = m.labels(batch)
    set_ticks(axis, "x", keys, m.columns, block, side, bool(m.key_labels))
    set_ticks(axis, "y", queries, m.rows, block, side, bool(m.query_labels))
    axis.set_anchor("N")
    axis.set_title("rollout ÷ largest of its row", fontsize=8, pad=3)

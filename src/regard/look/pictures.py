"""Pictures of attention maps: one head, an overview of all, one query over a grid, a graph; as PNG, or as HTML for notebooks.

matplotlib is imported only here, and pyplot never: no global state, no window, safe in a server.
"""

from __future__ import annotations

import base64
import io
import math
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib import font_manager
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

from ..errors import ShapeError, UnknownName
from .layouts import Graph, Grid, Tree
from .maps import MEAN, Map
from .terminal import CAPTION, batch_row, head_matrix, pool, readable, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LABELS = 60  # per axis: more cannot be read
MAX_CELLS = 512  # per axis: more cannot be seen
MAX_PANELS = (12, 12)  # layers and heads of an overview
SEQUENTIAL = "Blues"  # colormaps: non-negative weights
DIVERGING = "RdBu"  # weights of both signs


def figure_of(maps: list[Map], batch: int = 0, query: int | None = None, image: Any = None) -> Figure:
    """The picture that fits: one matrix, grid or graph; else an overview, layers × heads."""
    if len(maps) == 1 and (len(maps[0].heads) == 1 or query is not None or isinstance(maps[0].layout, Graph)):
        return draw(maps[0].head(), batch, query, image)
    return draw_overview(maps, batch)


def draw(m: Map, batch: int = 0, query: int | None = None, image: Any = None) -> Figure:
    """One map: by its layout, or as a matrix; several heads as an overview."""
    if isinstance(m.layout, Graph):
        return draw_graph(m.head(), batch)
    if isinstance(m.layout, Grid) and (query is not None or len(m.rows) == 1):
        return draw_grid(m.head(), batch, m.rows[0] if query is None else query, image)
    if query is not None:
        at = _row(m, query)
        names, _ = m.labels(batch)
        return draw_row(m.head(), head_matrix(m.head(), batch)[at], f"query {readable(names[at], 24)}", batch)
    return draw_matrix(m, batch) if len(m.heads) == 1 else draw_overview([m], batch)


def draw_matrix(m: Map, batch: int = 0) -> Figure:
    """One head: rows are queries, columns are keys."""
    weights = head_matrix(m, batch)
    queries, keys = ([readable(label, 18) for label in side] for side in m.labels(batch))
    shown = pool(weights, MAX_CELLS, MAX_CELLS)
    size = [min(max(0.24 * n, 2.2), 12.0) for n in (len(keys), len(queries))]
    if len(queries) * 6 > len(keys) and len(keys) * 6 > len(queries):  # square cells, unless the picture would be too thin
        scale = min(9.0 / max(len(keys), len(queries)), max(0.24, 3.2 / max(len(keys), len(queries))))
        size = [max(scale * n, 1.2) for n in (len(keys), len(queries))]
    figure = _figure(size[0] + 2.6, size[1] + 1.9)
    axis = figure.subplots()
    painted = _paint(axis, shown, m, _top(shown))
    _ticks(axis, "x", keys, shown.shape[1], bool(m.key_labels))
    _ticks(axis, "y", queries, shown.shape[0], bool(m.query_labels))
    axis.set_xlabel("key (attended to)")
    axis.set_ylabel("query (attends)")
    if isinstance(m.layout, Tree):
        for _, end in m.layout.spans[:-1]:
            axis.axvline((end - 0.5) * shown.shape[1] / len(keys), color="0.35", linewidth=0.8)
    _set_title(figure, m)
    figure.colorbar(painted, ax=axis, label="weight", shrink=min(1.0, 4.0 / size[1]), pad=0.02)
    return figure


def draw_overview(maps: list[Map], batch: int = 0) -> Figure:
    """Small pictures: a row per layer, a column per head; one color scale per layer."""
    left_out = len(maps) > MAX_PANELS[0] or any(len(m.heads) > MAX_PANELS[1] for m in maps)
    maps = maps[: MAX_PANELS[0]]
    columns = min(max((len(m.heads) for m in maps), default=1), MAX_PANELS[1])
    flat = [min(max(len(m.rows) / max(len(m.columns), 1), 0.25), 1.6) for m in maps]
    side = 1.6 * min(1.0, 8 / max(columns, len(maps)))
    figure = _figure(max((side + 0.1) * columns + 1.6, 4.2), sum(side * f + 0.55 for f in flat) + 0.7)
    axes = figure.subplots(len(maps), columns, squeeze=False, gridspec_kw={"height_ratios": flat})
    for line, m in zip(axes, maps, strict=True):
        weights_HLM = batch_row(m, batch)
        top = _top(weights_HLM)
        painted = None
        for n, axis in enumerate(line):
            if n >= len(m.heads):
                axis.set_axis_off()
                continue
            painted = _paint(axis, pool(weights_HLM[n], 256, 256), m, top)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title("mean of heads" if m.heads[n] == MEAN else f"head {m.heads[n]}", fontsize=8, pad=3)
        about = f"{readable(m.layer, 26)}\n{len(m.rows)} × {len(m.columns)}" + ("" if m.normalised else "\nrows ≠ 1")
        line[0].set_ylabel(about, fontsize=8, parse_math=False)
        if painted is not None:
            figure.colorbar(painted, ax=list(line), pad=0.01, aspect=14).ax.tick_params(labelsize=7)
    kinds = ", ".join(dict.fromkeys(m.mechanism for m in maps))
    note = "" if all(m.normalised for m in maps) else " · rows marked ≠ 1 do not sum to one"
    note += " · only the first layers and heads" if left_out else ""
    figure.suptitle(f"{kinds}: rows attend to columns{note}", fontsize=9, parse_math=False)
    return figure


def draw_grid(m: Map, batch: int = 0, query: int = 0, image: Any = None) -> Figure:
    """What one query attends to on a grid of keys, on top of the image if there is one."""
    assert isinstance(m.layout, Grid)
    row, layout = head_matrix(m, batch)[_row(m, query)], m.layout
    every = torch.zeros(m.keys)
    every[torch.tensor(m.columns)] = row
    grid = every[layout.prefix_tokens :].view(layout.rows, layout.columns)
    top = _top(grid)  # not of the row: a class token with most of the weight would leave the grid pale
    names, _ = m.labels(batch)
    figure = _figure(5.4, min(max(4.4 * layout.rows / layout.columns, 1.6), 10.0) + 0.9)
    axis = figure.subplots()
    extent = (-0.5, layout.columns - 0.5, layout.rows - 0.5, -0.5)
    if image is not None:
        axis.imshow(np.asarray(image), cmap="gray", extent=extent, interpolation="nearest")
        # opacity follows the weight, so that the image shows where there is none
        opacity = (grid.abs() / top).clamp(0, 1).mul(0.85).numpy() if top else 0.0
        painted = axis.imshow(grid.numpy(), extent=extent, alpha=opacity, interpolation="nearest", **_colours(m, top, "Reds"))
    else:
        painted = _paint(axis, grid, m, top)
    position = query - layout.prefix_tokens if m.queries == m.keys else -1
    if 0 <= position < layout.rows * layout.columns:  # the query is itself on the grid
        _ring(axis, position % layout.columns, position // layout.columns, 9, "tab:orange", 2)
    axis.set_xticks([])
    axis.set_yticks([])
    _set_title(figure, m, f"query {readable(names[_row(m, query)], 24)}")
    if layout.prefix_tokens:
        outside = float(row.sum() - grid.sum())
        axis.set_xlabel(f"{outside:.3g} of the weight is on the {layout.prefix_tokens} prefix token(s)", fontsize=8)
    figure.colorbar(painted, ax=axis, label="weight", shrink=0.85, pad=0.02)
    return figure


def draw_graph(m: Map, batch: int = 0) -> Figure:
    """Nodes, and the edges along which they attend: the wider and darker, the more weight."""
    assert isinstance(m.layout, Graph)
    weights, edges = head_matrix(m, batch), m.layout.edges
    nodes = max(m.keys, m.queries)
    point = spring_layout(nodes, edges)
    _, keys = m.labels(batch)
    figure = _figure(6.4, 5.6)
    axis = figure.subplots()
    row_of, column_of = {p: n for n, p in enumerate(m.rows)}, {p: n for n, p in enumerate(m.columns)}
    found = [(i, j, float(weights[row_of[i], column_of[j]])) for i, j in edges if i in row_of and j in column_of]
    top = _top(weights)
    colours = _colours(m, top)
    colour = ScalarMappable(Normalize(colours["vmin"], colours["vmax"]), colours["cmap"])
    radius = 11.0 if nodes <= 24 else 7.0 if nodes <= MAX_LABELS else 3.0
    for i, j, weight in sorted(found, key=lambda edge: abs(edge[2])):  # the heaviest last, on top
        share = abs(weight) / top if top else 0.0
        shade = colour.to_rgba(np.array(weight if m.signed else max(weight, 0.25 * top)))  # the faintest edge is still an edge
        if i == j:
            _ring(axis, point[i, 0], point[i, 1], 2 * radius + 6, shade, 0.4 + 4 * share)
            continue
        style = {
            "arrowstyle": "-|>",
            "color": shade,
            "linewidth": 0.4 + 4 * share,
            "shrinkA": radius + 2,
            "shrinkB": radius + 2,
            "mutation_scale": 7 + 6 * share,
            "connectionstyle": "arc3,rad=0.12",  # two directions between two nodes stay apart
        }
        axis.annotate("", xy=point[j], xytext=point[i], arrowprops=style)
    axis.scatter(point[:, 0], point[:, 1], s=(2 * radius) ** 2, color="white", edgecolors="0.3", zorder=3)
    if nodes <= MAX_LABELS:
        for node, where in enumerate(point):
            (name,), font = _drawable([readable(keys[column_of[node]], 10) if node in column_of else str(node)])
            inside = len(name) <= 3
            axis.annotate(
                name, where, xytext=(0, 0 if inside else -radius - 8), textcoords="offset points", ha="center", va="center", fontsize=8, zorder=4,
                **font,
            )  # fmt: skip
    axis.set_axis_off()
    axis.margins(0.15)
    axis.set_aspect("equal")
    _set_title(figure, m, "arrows point from query to key")
    figure.colorbar(colour, ax=axis, label="weight", shrink=0.7, pad=0.02)
    return figure


def draw_row(m: Map, row: Tensor, what: str, batch: int = 0) -> Figure:
    """One row of weights as a bar per key."""
    _, keys = m.labels(batch)
    keys = [readable(label, 18) for label in keys]
    figure = _figure(min(max(0.24 * len(keys), 3.6), 12.0) + 1.0, 3.4)
    axis = figure.subplots()
    colours = ["tab:red" if value < 0 else "tab:blue" for value in row.tolist()]
    axis.bar(range(len(keys)), row.numpy(), color=colours, width=0.9)
    _ticks(axis, "x", keys, len(keys), bool(m.key_labels))
    axis.set_xlim(-0.6, len(keys) - 0.4)
    axis.set_ylabel("weight")
    axis.spines[["top", "right"]].set_visible(False)
    _set_title(figure, m, what)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def to_html(maps: list[Map]) -> str:
    """Self-contained HTML: the picture, and statistics per layer. Labels are escaped."""
    if not maps:
        return "<p>nothing captured</p>"
    picture = base64.b64encode(png(draw(maps[0]) if len(maps) == 1 else draw_overview(maps))).decode()
    names = ("layer", "mechanism", "pattern", "heads", "rows × keys", "entropy (nats)", "mean distance", "rows")
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = []
    for m in maps:
        cells = (
            m.layer, m.mechanism, m.pattern, ", ".join("mean" if h == MEAN else str(h) for h in m.heads), f"{len(m.rows)} × {len(m.columns)}",
            _format_means(m.entropy()), _format_means(m.distance()) if m.queries == m.keys else "–", "sum to one" if m.normalised else "do not sum to one",
        )  # fmt: skip
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    words = ""
    if len(maps) == 1 and (maps[0].query_labels or maps[0].key_labels):
        sides = zip(("queries", "keys"), maps[0].labels(), strict=True)
        words = "".join(f"<p>{what}: {escape(' '.join(readable(word, 40) for word in names[:200]))}</p>" for what, names in sides)
    return (
        f'<div><img alt="attention weights" style="max-width:100%" src="data:image/png;base64,{picture}">{words}'
        f"<table><tr>{head}</tr>{''.join(lines)}</table><p><small>{CAPTION}</small></p></div>"
    )


def _format_means(x_BH: Tensor) -> str:
    values = [f"{value:.2f}" for value in x_BH.mean(0).tolist()]
    return ", ".join(values[:12]) + (" …" if len(values) > 12 else "")


# -- shared parts ---------------------------------------------------------------------------------------------


def _row(m: Map, query: int) -> int:
    if query not in m.rows:
        raise UnknownName("captured row of " + m.layer, str(query), map(str, m.rows))
    return m.rows.index(query)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def _top(weights: Tensor) -> float:
    return float(weights.abs().max()) if weights.numel() else 0.0


def _colours(m: Map, top: float, cmap: str = SEQUENTIAL) -> dict[str, Any]:
    top = top or 1.0
    return {"cmap": DIVERGING, "vmin": -top, "vmax": top} if m.signed else {"cmap": cmap, "vmin": 0.0, "vmax": top}


def _paint(axis: Axes, weights: Tensor, m: Map, top: float) -> Any:
    for spine in axis.spines.values():
        spine.set_color("0.7")
    if not weights.numel():
        raise ShapeError(f"{m.layer}: an empty matrix, {tuple(weights.shape)}, has no picture")
    long = max(weights.shape) > 6 * min(weights.shape)
    return axis.imshow(weights.numpy(), interpolation="nearest", aspect="auto" if long else "equal", **_colours(m, top))


def _ring(axis: Axes, x: float, y: float, size: float, color: Any, linewidth: float) -> None:
    axis.plot(x, y, marker="o", markersize=size, markerfacecolor="none", markeredgecolor=color, markeredgewidth=linewidth)


def _ticks(axis: Axes, side: str, labels: list[str], cells: int, named: bool) -> None:
    """At most MAX_LABELS, evenly spaced; numbers every 5, 10, 20, 50 …"""
    step = max(1, math.ceil(len(labels) / MAX_LABELS))
    if not named and len(labels) > 20:
        step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if len(labels) / s <= 16)
    at = range(0, len(labels), step)
    shown, style = _drawable([labels[n] for n in at])
    positions = [n * cells / len(labels) - (0.0 if cells == len(labels) else 0.5) for n in at]
    size = 8 if len(shown) <= 40 else 6.5
    if side == "x":
        steep = max(map(len, shown), default=0) > 2 and named
        axis.set_xticks(positions, shown, rotation=90 if steep else 0, fontsize=size, **style)
    else:
        axis.set_yticks(positions, shown, fontsize=size, **style)


def _set_title(figure: Figure, m: Map, more: str = "") -> None:
    line = title(m) + (f"\n{more}" if more else "") + ("" if m.normalised else "\nrows do not sum to one")
    (line,), style = _drawable([line])
    figure.suptitle(line, fontsize=9, wrap=True, **style)


def _drawable(labels: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Labels and their text style: fonts that have their characters, □ for what no font has; $ is not parsed as a formula."""
    families, missing = _fonts("".join(sorted(set("".join(labels)) - {"\n"})))
    lost = str.maketrans(dict.fromkeys(missing, "□"))
    return [label.translate(lost) for label in labels], {"fontfamily": list(families), "parse_math": False}


@lru_cache(maxsize=64)
def _fonts(characters: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """matplotlib's own font and installed ones that have what it lacks; and the characters that no font has."""
    chosen, missing = ["DejaVu Sans"], _missing(font_manager.findfont("DejaVu Sans"), set(characters))
    for font in font_manager.fontManager.ttflist if missing else ():
        if font.name in chosen or font.style != "normal" or "Last Resort" in font.name:  # which has every character, as a box
            continue
        left = _missing(font.fname, missing)
        if len(left) < len(missing):
            chosen.append(font.name)
            missing = left
        if not missing:
            break
    return tuple(chosen), frozenset(missing)


def _missing(file: str, characters: set[str]) -> set[str]:
    try:
        font = font_manager.get_font(file)
    except (OSError, RuntimeError):  # bitmap fonts, and files deleted since fonts were listed
        return characters
    return {c for c in characters if not font.get_char_index(ord(c))}


def spring_layout(nodes: int, edges: tuple[tuple[int, int], ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Positions of the nodes: starting on a circle, edges attract and all pairs repel (Fruchterman & Reingold 1991)."""
    angle = 2 * np.pi * np.arange(nodes) / max(nodes, 1)
    point = np.stack([np.cos(angle), np.sin(angle)], 1)
    if nodes < 3 or nodes > 400 or not edges:
        return point
    joined = np.zeros((nodes, nodes))
    for i, j in edges:
        if i != j:
            joined[i, j] = joined[j, i] = 1
    rest = 1.6 / math.sqrt(nodes)
    for heat in np.linspace(0.15, 0.005, 120):
        apart = point[:, None] - point[None]
        far = np.sqrt((apart**2).sum(-1)).clip(1e-3)
        force = (apart * (rest**2 / far**2 - joined * far / rest)[..., None]).sum(1)
        force -= point  # gravity: else unconnected parts drift far apart, and their edges become too short to see
        size = np.sqrt((force**2).sum(-1, keepdims=True)).clip(1e-9)
        point = point + force / size * np.minimum(size, heat)
    return point

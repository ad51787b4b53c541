"""Pictures of attention maps: one head, one query over a grid, a graph; as PNG, or as HTML for notebooks.

matplotlib is imported when a figure is made, and pyplot never: no global state, no window, safe in a server.
"""

from __future__ import annotations

import base64
import io
import math
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CaptureNotSupported, UnknownName
from .axes import DPI, SEQUENTIAL, add_colorbar, centre_heading, colours, drawable, is_thin, new_figure, paint, set_ticks, set_title
from .layouts import Graph, Grid, Tree
from .map import MEAN, Map
from .overview import draw_overview
from .scales import Scale, ScaleName, shaded
from .terminal import CAPTION, head_matrix, readable
from .trees import draw_document

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 60  # of a graph's nodes: more cannot be read
MAX_CELLS = 512  # per axis: more cannot be seen


def figure_of(maps: list[Map], batch: int = 0, query: int | None = None, image: Any = None, scale: ScaleName = "row") -> Figure:
    """The picture that fits: one matrix, grid or graph; over an image if there is one; else an overview, layers × heads."""
    from .overlays import draw_maps  # which draws with this package's axes

    if query is None and maps and isinstance(maps[-1].layout, Tree) and len(maps[-1].rows) == 1:
        return draw_document(maps[-1].head(), batch)
    if image is not None and maps and all(isinstance(m.layout, Grid) for m in maps):
        return draw_maps(image, maps, batch, query)
    if len(maps) == 1 and (len(maps[0].heads) == 1 or query is not None or isinstance(maps[0].layout, Graph)):
        return draw(maps[0].head(), batch, query, scale)
    if not maps:
        raise CaptureNotSupported("nothing was captured; run the model inside `with capture(model) as maps:`")
    return draw_overview(maps, batch, scale)


def draw(m: Map, batch: int = 0, query: int | None = None, scale: ScaleName = "row") -> Figure:
    """One map: by its layout, or as a matrix; several heads as an overview."""
    if isinstance(m.layout, Graph):
        return draw_graph(m.head(), batch, scale)
    if isinstance(m.layout, Tree) and len(m.rows) == 1 and query is None:
        return draw_document(m.head(), batch)
    if isinstance(m.layout, Grid) and (query is not None or len(m.rows) == 1):
        return draw_grid(m.head(), batch, m.rows[0] if query is None else query, scale)
    if query is not None:
        at = _row(m, query)
        names, _ = m.labels(batch)
        return draw_row(m.head(), head_matrix(m.head(), batch)[at], f"query {readable(names[at], 24)}", batch)
    return draw_matrix(m, batch, scale) if len(m.heads) == 1 else draw_overview([m], batch, scale)


def draw_matrix(m: Map, batch: int = 0, scale: ScaleName = "row") -> Figure:
    """One head: rows are queries, columns are keys."""
    weights = head_matrix(m, batch)
    queries, keys = m.labels(batch)
    L, M = len(queries), len(keys)
    down, across = -(-L // MAX_CELLS), -(-M // MAX_CELLS)
    size = [min(max(0.24 * n, 2.2), 12.0) for n in (M, L)]
    if not is_thin(L, M):
        down = across = max(down, across)  # cells stay square
        cell = min(9.0 / max(M, L), max(0.24, 3.2 / max(M, L)))
        size = [max(cell * n, 1.2) for n in (M, L)]
    figure = new_figure(size[0] + 2.6, max(size[1] + 1.6, 2.5))
    axis = figure.subplots()
    fitted, (shades,) = shaded([weights], [(down, across)], scale)
    paint(axis, shades, m, m.signed)
    set_ticks(axis, "x", keys, m.columns, across, size[0], bool(m.key_labels))
    set_ticks(axis, "y", queries, m.rows, down, size[1], bool(m.query_labels))
    axis.set_xlabel("key (attended to)")
    axis.set_ylabel("query (attends)")
    draw_values(axis, m, size)
    if isinstance(m.layout, Tree):
        for _, end in m.layout.spans[:-1]:
            axis.axvline(end / across - 0.5, color="0.35", linewidth=0.8)
    set_title(figure, m, "" if max(down, across) <= 1 else f"largest of each {down} × {across} block")
    add_colorbar(figure, axis, fitted, m.signed, shrink=min(1.0, 4.0 / size[1]), aspect=20 if size[1] > 2 else 10)
    return figure


def draw_values(axis: Axes, m: Map, size: list[float]) -> None:
    """Values of queries as bars to the right of a matrix of this size in inches, those of keys above it."""
    if m.query_values:
        bars = axis.inset_axes((1 + 0.1 / size[0], 0, 0.7 / size[0], 1), sharey=axis)
        bars.barh(range(len(m.rows)), m.query_values.numbers, height=0.8, color="tab:orange")
        bars.set_xlim(0, max(1.0, *m.query_values.numbers))
        bars.set_title(m.query_values.name, fontsize=7)
        bars.tick_params(labelleft=False, left=False, labelsize=6)
    if m.key_values:
        bars = axis.inset_axes((0, 1 + 0.1 / size[1], 1, 0.5 / size[1]), sharex=axis)
        bars.bar(range(len(m.columns)), m.key_values.numbers, width=0.8, color="tab:blue")
        bars.set_ylim(0, max(1.0, *m.key_values.numbers))
        bars.set_ylabel(m.key_values.name, fontsize=7, rotation=0, ha="right", va="center")
        bars.tick_params(labelbottom=False, bottom=False, labelsize=6)


def draw_grid(m: Map, batch: int = 0, query: int = 0, scale: ScaleName = "row") -> Figure:
    """Draw the weights of one query on a grid of keys."""
    assert isinstance(m.layout, Grid)
    row, layout = head_matrix(m, batch)[_row(m, query)], m.layout
    every = torch.zeros(m.keys)
    every[torch.tensor(m.columns)] = row
    grid = layout.side_by_side(every)
    # not of the row: a class token with most of the weight would leave the grid pale. The grid is a single row, so "row" is "global"
    fitted = Scale.fit("global" if scale == "row" else scale, [grid])
    shades = fitted.shades(grid)
    names, _ = m.labels(batch)
    figure = new_figure(5.4, min(max(4.4 * grid.shape[0] / grid.shape[1], 1.6), 10.0) + 0.9)
    axis = figure.subplots()
    paint(axis, shades, m, m.signed)
    position = query - layout.prefix_tokens if m.queries == m.keys else -1
    if 0 <= position < grid.numel():  # the query is itself on the grid
        frame, inside = divmod(position, layout.rows * layout.columns)
        _ring(axis, frame * layout.columns + inside % layout.columns, inside // layout.columns, 9, "tab:orange", 2)
    axis.set_xticks([])
    axis.set_yticks([])
    set_title(figure, m, f"query {readable(names[_row(m, query)], 24)}")
    if layout.prefix_tokens:
        outside = float(row.sum() - grid.sum())
        axis.set_xlabel(f"{outside:.3g} of the weight is on the {layout.prefix_tokens} prefix token(s)", fontsize=8)
    add_colorbar(figure, axis, fitted, m.signed, SEQUENTIAL, shrink=0.85)
    return figure


def draw_graph(m: Map, batch: int = 0, scale: ScaleName = "row") -> Figure:
    """Nodes, and the edges along which they attend: the wider and darker, the more weight."""
    assert isinstance(m.layout, Graph)
    weights, edges = head_matrix(m, batch), m.layout.edges
    nodes = max(m.keys, m.queries)
    point = spring_layout(nodes, edges)
    _, keys = m.labels(batch)
    figure = new_figure(6.4, 5.6)
    axis = figure.subplots()
    row_of, column_of = {p: n for n, p in enumerate(m.rows)}, {p: n for n, p in enumerate(m.columns)}
    fitted = Scale.fit(scale, [weights])
    shades = fitted.shades(weights)
    found = [(i, j, float(shades[row_of[i], column_of[j]])) for i, j in edges if i in row_of and j in column_of]
    colour = colours(m.signed)
    radius = 11.0 if nodes <= 24 else 7.0 if nodes <= MAX_LABELS else 3.0
    for i, j, signed_share in sorted(found, key=lambda edge: abs(edge[2])):  # the heaviest last, on top
        share = abs(signed_share)
        shade = colour.to_rgba(np.array(signed_share if m.signed else max(share, 0.25)))  # the faintest edge is still an edge
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
            (name,), font = drawable([readable(keys[column_of[node]], 10) if node in column_of else str(node)])
            inside = len(name) <= 3
            axis.annotate(
                name, where, xytext=(0, 0 if inside else -radius - 8), textcoords="offset points", ha="center", va="center", fontsize=8, zorder=4,
                **font,
            )  # fmt: skip
    axis.set_axis_off()
    axis.margins(0.15)
    axis.set_aspect("equal")
    set_title(figure, m, "arrows point from query to key")
    add_colorbar(figure, axis, fitted, m.signed, shrink=0.7)
    return figure


def draw_row(m: Map, row: Tensor, what: str, batch: int = 0) -> Figure:
    """One row of weights as a bar per key."""
    _, keys = m.labels(batch)
    wide = min(max(0.24 * len(keys), 3.6), 12.0)
    figure = new_figure(wide + 1.0, 3.4)
    axis = figure.subplots()
    axis.bar(range(len(keys)), row.numpy(), color=["tab:red" if value < 0 else "tab:blue" for value in row.tolist()], width=0.9)
    set_ticks(axis, "x", keys, m.columns, 1, wide, bool(m.key_labels))
    axis.set_xlim(-0.6, len(keys) - 0.4)
    axis.set_ylabel("weight")
    axis.spines[["top", "right"]].set_visible(False)
    set_title(figure, m, what)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as the bytes of a PNG file."""
    centre_heading(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
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


def _ring(axis: Axes, x: float, y: float, size: float, color: Any, linewidth: float) -> None:
    axis.plot(x, y, marker="o", markersize=size, markerfacecolor="none", markeredgecolor=color, markeredgewidth=linewidth)


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

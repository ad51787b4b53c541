"""Pictures of weights: one head, all heads small, one query over a grid, a graph; as PNG, or as HTML for a notebook.

matplotlib is imported only here, and never its pyplot: no global state, no window, safe in a server.
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
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

from ..errors import ShapeError, UnknownName
from .layouts import Graph, Grid, Tree
from .maps import MEAN, Map, Maps
from .text import CAPTION, one, pool, readable, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS, MOST_CELLS = 60, 512  # an axis: more labels cannot be read, more cells not be seen
MOST_PANELS = (12, 12)  # layers, heads: of small pictures in one figure
ONE_WAY, TWO_WAYS = "Blues", "RdBu"  # weights from zero up; weights of both signs


def figure_of(
    maps: Maps,
    layer: str | None = None,
    head: int | None = None,
    batch: int = 0,
    call: int | None = None,
    query: int | None = None,
    image: Any = None,
) -> Figure:
    """The picture that fits what was narrowed down: one matrix, grid or graph; else small ones, layers × heads."""
    chosen = [maps.view(layer, call)] if layer is not None or not maps.all else [maps.view(name, call) for name in maps.layers]
    if head is not None:
        chosen = [m.head(head) for m in chosen]
    if len(chosen) == 1 and (len(chosen[0].heads) == 1 or query is not None or isinstance(chosen[0].layout, Graph)):
        return draw(chosen[0].head(), batch, query, image)
    return overview(chosen, batch)


def draw(m: Map, batch: int = 0, query: int | None = None, image: Any = None) -> Figure:
    """One map: after its layout if that says how, else as a matrix; several heads as small pictures."""
    if isinstance(m.layout, Graph):
        return graph(m.head(), batch)
    if isinstance(m.layout, Grid) and (query is not None or len(m.rows) == 1):
        return over_grid(m.head(), batch, m.rows[0] if query is None else query, image)
    if query is not None:
        at = _row(m, query)
        names, _ = m.labels(batch)
        return bars(m.head(), one(m.head(), batch)[at], f"query {readable(names[at], 24)}", batch)
    return matrix(m, batch) if len(m.heads) == 1 else overview([m], batch)


def matrix(m: Map, batch: int = 0) -> Figure:
    """One head, targets × sources: rows are queries, columns keys."""
    weights = one(m, batch)
    queries, keys = ([readable(label, 18) for label in side] for side in m.labels(batch))
    shown = pool(weights, MOST_CELLS, MOST_CELLS)
    size = [min(max(0.24 * n, 2.2), 12.0) for n in (len(keys), len(queries))]
    if len(queries) * 6 > len(keys) and len(keys) * 6 > len(queries):  # cells stay square unless that would make a thread of it
        scale = min(9.0 / max(len(keys), len(queries)), max(0.24, 3.2 / max(len(keys), len(queries))))
        size = [max(scale * n, 1.2) for n in (len(keys), len(queries))]
    figure = _figure(size[0] + 2.6, size[1] + 1.9)
    axis = figure.subplots()
    painted = _paint(axis, shown, m, _top(shown))
    _ticks(axis, "x", keys, shown.shape[1], bool(m.key_labels))
    _ticks(axis, "y", queries, shown.shape[0], bool(m.query_labels))
    axis.set_xlabel("key (looked at)")
    axis.set_ylabel("query (looks)")
    if isinstance(m.layout, Tree):
        for _, end in m.layout.spans[:-1]:
            axis.axvline((end - 0.5) * shown.shape[1] / len(keys), color="0.35", linewidth=0.8)
    _head_line(figure, m)
    figure.colorbar(painted, ax=axis, label="weight", shrink=min(1.0, 4.0 / size[1]), pad=0.02)
    return figure


def overview(maps: list[Map], batch: int = 0) -> Figure:
    """Small pictures, a row a layer, a column a head, one scale of colours for each layer's row."""
    left_out = len(maps) > MOST_PANELS[0] or any(len(m.heads) > MOST_PANELS[1] for m in maps)
    maps = maps[: MOST_PANELS[0]]
    columns = min(max((len(m.heads) for m in maps), default=1), MOST_PANELS[1])
    flat = [min(max(len(m.rows) / max(len(m.columns), 1), 0.25), 1.6) for m in maps]
    side = 1.6 * min(1.0, 8 / max(columns, len(maps)))
    figure = _figure(max((side + 0.1) * columns + 1.6, 4.2), sum(side * f + 0.55 for f in flat) + 0.7)
    axes = figure.subplots(len(maps), columns, squeeze=False, gridspec_kw={"height_ratios": flat})
    for line, m in zip(axes, maps, strict=True):
        whole = m.weights_BHLM[batch].float() if 0 <= batch < len(m.weights_BHLM) else one(m, batch)[None]
        top = _top(whole)
        painted = None
        for n, axis in enumerate(line):
            if n >= len(m.heads):
                axis.set_axis_off()
                continue
            painted = _paint(axis, pool(whole[n], 256, 256), m, top)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title("mean of heads" if m.heads[n] == MEAN else f"head {m.heads[n]}", fontsize=8, pad=3)
        line[0].set_ylabel(
            readable(m.layer, 26) + f"\n{len(m.rows)} × {len(m.columns)}" + ("" if m.normalised else "\nrows ≠ 1"),
            fontsize=8,
            parse_math=False,
        )
        if painted is not None:
            figure.colorbar(painted, ax=list(line), pad=0.01, aspect=14).ax.tick_params(labelsize=7)
    kinds = ", ".join(dict.fromkeys(m.mechanism for m in maps))
    note = "" if all(m.normalised for m in maps) else " · rows not normalised where it says ≠ 1"
    figure.suptitle(
        f"{kinds}: rows look at columns{note}" + (" · the first layers and heads only" if left_out else ""), fontsize=9, parse_math=False
    )
    return figure


def over_grid(m: Map, batch: int = 0, query: int = 0, image: Any = None) -> Figure:
    """Where one query looked on a grid of keys, upon the image if there is one."""
    assert isinstance(m.layout, Grid)
    row, layout = one(m, batch)[_row(m, query)], m.layout
    every = torch.zeros(m.keys)
    every[torch.tensor(m.columns)] = row
    places = every[layout.first :].view(layout.height, layout.width)
    top = _top(places)  # not of the row: a class token that takes most of it would leave the grid pale
    names, _ = m.labels(batch)
    shape = layout.height / layout.width
    figure = _figure(5.4, min(max(4.4 * shape, 1.6), 10.0) + 0.9)
    axis = figure.subplots()
    extent = (-0.5, layout.width - 0.5, layout.height - 0.5, -0.5)
    if image is not None:
        picture = np.asarray(image)
        axis.imshow(picture, cmap="gray", extent=extent, interpolation="nearest")
        # opacity follows the weight, so that the image shows where nobody looks
        opacity = (places.abs() / top).clamp(0, 1).mul(0.85).numpy() if top else 0.0
        painted = axis.imshow(places.numpy(), extent=extent, alpha=opacity, interpolation="nearest", **_colours(m, top, "Reds"))
    else:
        painted = _paint(axis, places, m, top)
    place = query + (m.keys - m.queries) - layout.first if m.queries == m.keys else -1
    if 0 <= place < layout.height * layout.width:  # the query is itself on the grid
        axis.plot(
            [place % layout.width],
            [place // layout.width],
            marker="o",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor="tab:orange",
            markeredgewidth=2,
        )
    axis.set_xticks([])
    axis.set_yticks([])
    _head_line(figure, m, f"query {readable(names[_row(m, query)], 24)}")
    outside = float(row.sum() - places.sum()) if layout.first else 0.0
    if layout.first:
        axis.set_xlabel(f"{outside:.3g} of the weight is on the {layout.first} key(s) before the grid", fontsize=8)
    figure.colorbar(painted, ax=axis, label="weight", shrink=0.85, pad=0.02)
    return figure


def graph(m: Map, batch: int = 0) -> Figure:
    """Nodes and the edges along which they look: the wider and darker, the more weight."""
    assert isinstance(m.layout, Graph)
    weights, edges = one(m, batch), m.layout.edges
    nodes = max(m.keys, m.queries)
    place = _spring(nodes, edges)
    _, keys = m.labels(batch)
    figure = _figure(6.4, 5.6)
    axis = figure.subplots()
    row_of, column_of = {p: n for n, p in enumerate(m.rows)}, {p: n for n, p in enumerate(m.columns)}
    found = [(i, j, float(weights[row_of[i], column_of[j]])) for i, j in edges if i in row_of and j in column_of]
    top = _top(weights)
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = _colours(m, top)
    colour = ScalarMappable(Normalize(colours["vmin"], colours["vmax"]), colours["cmap"])
    radius = 11.0 if nodes <= 24 else 7.0 if nodes <= MOST_LABELS else 3.0
    for i, j, weight in sorted(found, key=lambda edge: abs(edge[2])):  # the heaviest last, on top
        share = abs(weight) / top if top else 0.0
        shade = colour.to_rgba(np.array(weight if m.signed else max(weight, 0.25 * top)))  # the faintest edge is still an edge
        if i == j:
            axis.plot(
                *place[i],
                marker="o",
                markersize=2 * radius + 6,
                markerfacecolor="none",
                markeredgecolor=shade,
                markeredgewidth=0.4 + 4 * share,
            )
            continue
        axis.annotate(
            "",
            xy=place[j],
            xytext=place[i],
            arrowprops={
                "arrowstyle": "-|>",
                "color": shade,
                "linewidth": 0.4 + 4 * share,
                "shrinkA": radius + 2,
                "shrinkB": radius + 2,
                "mutation_scale": 7 + 6 * share,
                "connectionstyle": "arc3,rad=0.12",  # two directions between two nodes stay apart
            },
        )
    axis.scatter(place[:, 0], place[:, 1], s=(2 * radius) ** 2, color="white", edgecolors="0.3", zorder=3)
    if nodes <= MOST_LABELS:
        for node, where in enumerate(place):
            (name,), style = _written([readable(keys[column_of[node]], 10) if node in column_of else str(node)])
            inside = len(name) <= 3
            axis.annotate(
                name, where, xytext=(0, 0 if inside else -radius - 8), textcoords="offset points", ha="center", va="center", fontsize=8, zorder=4,
                **style,
            )  # fmt: skip
    axis.set_axis_off()
    axis.margins(0.15)
    axis.set_aspect("equal")
    _head_line(figure, m, "arrows from who looks to what is looked at")
    figure.colorbar(colour, ax=axis, label="weight", shrink=0.7, pad=0.02)
    return figure


def bars(m: Map, row: Tensor, what: str, batch: int = 0) -> Figure:
    """One row of weights, a bar a key."""
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
    _head_line(figure, m, what)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def page(maps: list[Map]) -> str:
    """Self-contained HTML: the picture inside, and a line of numbers a layer. Labels are escaped."""
    if not maps:
        return "<p>nothing captured</p>"
    picture = base64.b64encode(png(draw(maps[0]) if len(maps) == 1 else overview(maps))).decode()
    head = "".join(
        f"<th>{name}</th>" for name in ("layer", "mechanism", "pattern", "heads", "rows × keys", "entropy (nats)", "mean distance", "rows")
    )
    lines = []
    for m in maps:
        cells = (
            m.layer, m.mechanism, m.pattern, ", ".join("mean" if h == MEAN else str(h) for h in m.heads), f"{len(m.rows)} × {len(m.columns)}",
            _some(m.entropy()), _some(m.distance()) if m.queries == m.keys else "–", "sum to one" if m.normalised else "do not sum to one",
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


def _some(x_BH: Tensor) -> str:
    values = [f"{value:.2f}" for value in x_BH.mean(0).tolist()]
    return ", ".join(values[:12]) + (" …" if len(values) > 12 else "")


# -- what the pictures share ---------------------------------------------------------------------------------------------


def _row(m: Map, query: int) -> int:
    if query not in m.rows:
        raise UnknownName("captured row of " + m.layer, str(query), map(str, m.rows))
    return m.rows.index(query)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def _top(weights: Tensor) -> float:
    return float(weights.abs().max()) if weights.numel() else 0.0


def _colours(m: Map, top: float, one_way: str = ONE_WAY) -> dict[str, Any]:
    top = top or 1.0
    return {"cmap": TWO_WAYS, "vmin": -top, "vmax": top} if m.signed else {"cmap": one_way, "vmin": 0.0, "vmax": top}


def _paint(axis: Axes, weights: Tensor, m: Map, top: float) -> Any:
    for spine in axis.spines.values():
        spine.set_color("0.7")
    if not weights.numel():
        raise ShapeError(f"{m.layer}: an empty matrix, {tuple(weights.shape)}, has no picture")
    long = max(weights.shape) > 6 * min(weights.shape)
    return axis.imshow(weights.numpy(), interpolation="nearest", aspect="auto" if long else "equal", **_colours(m, top))


def _ticks(axis: Axes, side: str, labels: list[str], cells: int, named: bool) -> None:
    """At most MOST_LABELS, evenly; numbers every 5, 10, 20, 50 …, words every so many."""
    step = max(1, math.ceil(len(labels) / MOST_LABELS))
    if not named and len(labels) > 20:
        step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if len(labels) / s <= 16)
    at = range(0, len(labels), step)
    shown, style = _written([labels[n] for n in at])
    places = [n * cells / len(labels) - (0.0 if cells == len(labels) else 0.5) for n in at]
    size = 8 if len(shown) <= 40 else 6.5
    if side == "x":
        steep = max(map(len, shown), default=0) > 2 and named
        axis.set_xticks(places, shown, rotation=90 if steep else 0, fontsize=size, **style)
    else:
        axis.set_yticks(places, shown, fontsize=size, **style)


def _head_line(figure: Figure, m: Map, more: str = "") -> None:
    line = title(m) + (f"\n{more}" if more else "") + ("" if m.normalised else "\nrows do not sum to one")
    (line,), style = _written([line])
    figure.suptitle(line, fontsize=9, wrap=True, **style)


def _written(labels: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Labels and how to set them: in fonts that have their characters, □ for what no font has; a $ is a $, not a formula."""
    families, missing = _fonts("".join(sorted(set("".join(labels)) - {"\n"})))
    lost = str.maketrans(dict.fromkeys(missing, "□"))
    return [label.translate(lost) for label in labels], {"fontfamily": list(families), "parse_math": False}


@lru_cache(maxsize=64)
def _fonts(characters: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """matplotlib's own font and, of those installed, the ones that have what it lacks; and what none has."""
    chosen, missing = ["DejaVu Sans"], _missing(font_manager.findfont("DejaVu Sans"), set(characters))
    for font in font_manager.fontManager.ttflist if missing else ():
        if font.name in chosen or font.style != "normal" or "Last Resort" in font.name:  # which has all, as boxes
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
    except (OSError, RuntimeError):  # bitmap fonts, and files gone since the list was made
        return characters
    return {c for c in characters if not font.get_char_index(ord(c))}


def _spring(nodes: int, edges: tuple[tuple[int, int], ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Places of the nodes: from a circle on, edges pull and all pairs push (Fruchterman & Reingold 1991)."""
    angle = 2 * np.pi * np.arange(nodes) / max(nodes, 1)
    place = np.stack([np.cos(angle), np.sin(angle)], 1)
    if nodes < 3 or nodes > 400 or not edges:
        return place
    joined = np.zeros((nodes, nodes))
    for i, j in edges:
        if i != j:
            joined[i, j] = joined[j, i] = 1
    rest = 1.6 / math.sqrt(nodes)
    for heat in np.linspace(0.15, 0.005, 120):
        apart = place[:, None] - place[None]
        far = np.sqrt((apart**2).sum(-1)).clip(1e-3)
        force = (apart * (rest**2 / far**2 - joined * far / rest)[..., None]).sum(1) - 0.4 * place * rest
        size = np.sqrt((force**2).sum(-1, keepdims=True)).clip(1e-9)
        place = place + force / size * np.minimum(size, heat)
    return place

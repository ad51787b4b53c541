"""Pictures that several recipes draw."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..look import Map
from ..models import Translator
from ..tasks import Run, alignment
from ._base import Figures, Spread

Curves = Mapping[str, Mapping[int, Spread]]


def series(figures: Figures, head: str) -> dict[str, dict[int, Spread]]:
    """The figures "head, … 12 …" of each variant that has some, by the last number in their names."""
    found = {
        name: {
            int(re.findall(r"\d+", figure)[-1]): figures[name, figure]
            for figure in each[0]
            if re.match(rf"{re.escape(head)}, .*\d", figure)
        }
        for name, each in figures.seen.items()
    }
    return {name: points for name, points in found.items() if points}


def learning(figures: Figures, out: Path, among: str = "") -> Path:
    """Nats a token on validation pairs, by step: of all variants, or of those whose names begin so."""
    curves = {name: points for name, points in series(figures, "validation nats").items() if name.startswith(among)}
    path = out / f"learning{'_' * bool(among)}{among}.png"
    return lines(path, curves, x="step", y="nats a token", title=f"Learning, on validation pairs{': ' * bool(among)}{among}")


def solving(figures: Figures, out: Path, among: str = "") -> Path:
    """The share of right answers on validation draws, by step: of all variants, or of those whose names begin so."""
    curves = {name: points for name, points in series(figures, "validation accuracy").items() if name.startswith(among)}
    path = out / f"solving{'_' * bool(among)}{among}.png"
    return lines(path, curves, x="step", y="share right", title=f"Learning, on validation draws{': ' * bool(among)}{among}")


def lines(path: Path, curves: Curves, *, x: str, y: str, title: str, logarithmic: str = "") -> Path:
    """One line a variant, a point a setting, a band from the worst seed to the best."""
    from matplotlib.figure import Figure  # only when a picture is asked for

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axis = figure.subplots()
    for n, (name, points) in enumerate(curves.items()):
        at, dashes = sorted(points), ("-", "--", ":")[n // 10 % 3]  # there are ten colours
        (line,) = axis.plot(at, [points[p].mean for p in at], dashes, marker="o", markersize=4, label=name)
        axis.fill_between(at, [points[p].low for p in at], [points[p].high for p in at], color=line.get_color(), alpha=0.15, linewidth=0)
    axis.set(xlabel=x, ylabel=y, title=title)
    if "x" in logarithmic:
        axis.set_xscale("log", base=2)
        at = sorted({p for points in curves.values() for p in points})
        axis.set_xticks(at, [f"{p:,}" for p in at])
    if "y" in logarithmic:
        axis.set_yscale("log")
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8 if len(curves) > 6 else None)  # beside the lines, never on them
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    return path


def alignments(path: Path, runs: Mapping[str, Path], sentence: str, columns: int) -> Path:
    """Where each trained run looked while it wrote its own translation of the sentence: a small matrix each, targets down."""
    return looks(path, {name: alignment(Run.load(out, Translator), sentence)[1] for name, out in runs.items()}, columns)


def looks(path: Path, maps: Mapping[str, Map], columns: int) -> Path:
    """A small matrix each, queries down: the first batch row, the first head. Words stand beside it where they were given.

    White is 0, and the darkest colour 1, or what the title says: maps that spread their looks thin would else be blank.
    """
    from matplotlib.figure import Figure

    height = -(-len(maps) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.9 * height), layout="constrained")
    axes = figure.subplots(height, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, (name, drawn) in zip(axes, maps.items(), strict=False):
        weights_LM = drawn.weights_BHLM[0, 0]
        most = float(weights_LM.abs().max())
        top = most if drawn.signed or 0 < most < 0.5 else 1.0
        axis.set_axis_on()
        axis.imshow(
            weights_LM.numpy(),
            cmap="RdBu" if drawn.signed else "Blues",
            vmin=-top if drawn.signed else 0,
            vmax=top,
            interpolation="nearest",
            aspect="auto",
        )
        if drawn.key_labels:
            queries, keys = drawn.labels()
            axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=6, parse_math=False)
            axis.set_yticks(range(len(queries)), queries, fontsize=6, parse_math=False)
        else:
            axis.tick_params(labelsize=6)
        axis.set_title(name if top == 1 else f"{name} (to {top:.2g})", fontsize=9, parse_math=False)
    figure.savefig(path, dpi=150)
    return path

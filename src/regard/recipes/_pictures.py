"""Pictures that several recipes draw."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ._base import Spread


def lines(path: Path, curves: Mapping[str, Mapping[int, Spread]], *, x: str, y: str, title: str, logarithmic: str = "") -> Path:
    """One line a variant, a point a setting, a band from the worst seed to the best."""
    from matplotlib.figure import Figure  # only when a picture is asked for

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, points in curves.items():
        at = sorted(points)
        (line,) = axis.plot(at, [points[p].mean for p in at], marker="o", markersize=4, label=name)
        axis.fill_between(at, [points[p].low for p in at], [points[p].high for p in at], color=line.get_color(), alpha=0.15, linewidth=0)
    axis.set(xlabel=x, ylabel=y, title=title)
    if "x" in logarithmic:
        axis.set_xscale("log", base=2)
        at = sorted({p for points in curves.values() for p in points})
        axis.set_xticks(at, [f"{p:,}" for p in at])
    if "y" in logarithmic:
        axis.set_yscale("log")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    return path

"""Time against length, both logarithmic: a line per mechanism, exact attention bold, a ring at each crossover."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._extras import extra
from ..errors import BadConfig, CannotSave
from .result import EXACT, LABELS, Comparison

with extra("look"):
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 12  # lines; with more, mechanisms that never beat exact attention are drawn faint
STYLES = ("-", "--", ":", "-.")  # with twenty colours each: eighty distinct lines


def draw(comparison: Comparison, path: str | Path | None = None) -> Figure:
    """One panel per operation."""
    if path is not None and Path(path).suffix.lower() != ".png":
        raise BadConfig(f"{path}: expected a name that ends in .png")
    shown = [name for name in comparison.mechanisms if any(row.seconds for row in comparison.rows if row.mechanism == name)]
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    others = [name for name in shown if name != EXACT]
    styles = {name: {"color": colours[n % 20], "linestyle": STYLES[n // 20 % 4], "linewidth": 1.2} for n, name in enumerate(others)}
    styles[EXACT] = {"color": "black", "linestyle": "-", "linewidth": 3.0}
    panels = comparison.operations
    columns = math.ceil(len(shown) / 36)
    figure = Figure(figsize=(4.8 * len(panels) + 2.2 * columns, 5.2 if len(shown) <= FEW else 7.6), layout="constrained", dpi=110)
    for axis, operation in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axis, comparison, operation, shown, styles)
    slowest = sorted(shown, key=lambda name: -(comparison.row(name, comparison.options.lengths[-1], "train").seconds or math.inf))
    handles = [Line2D([], [], marker=".", label=name, **styles[name]) for name in slowest]  # in the order of the lines' right ends
    figure.legend(handles=handles, loc="outside right upper", ncols=columns, fontsize=8, frameon=False)
    options = comparison.options
    figure.suptitle(
        f"{options.batch_size} × {options.heads} heads of {options.width // options.heads}, {'causal' if options.causal else 'full'}, {options.dtype}"
        f"{', with projections' if options.projections else ''}; {comparison.machine}\n"
        "bold: exact attention; ring: from here on a mechanism is faster",
        fontsize=9,
    )
    if path is not None:
        try:
            figure.savefig(path)
        except OSError as error:
            raise CannotSave(f"cannot write {path}: {error.strerror}; choose another path") from error
    return figure


def _panel(axis: Axes, comparison: Comparison, operation: str, shown: list[str], styles: dict[str, dict[str, Any]]) -> None:
    axis.set_title(LABELS[operation], fontsize=10)
    for name in shown:
        rows = [row for row in comparison.rows if row.mechanism == name and row.operation == operation and row.seconds is not None]
        times = {row.length: row.seconds * 1e3 for row in rows if row.seconds is not None}
        crossed = comparison.crossover(name, operation)
        loses = len(shown) > FEW and name != EXACT and crossed.kind in ("never", "unknown")
        order = 3 if name == EXACT else 1 if loses else 2
        axis.plot(list(times), list(times.values()), marker=".", label=name, zorder=order, alpha=0.3 if loses else 1.0, **styles[name])
        if name != EXACT and crossed.kind == "from" and crossed.length is not None:
            ring = {"ms": 8, "mfc": "none", "mec": styles[name]["color"], "mew": 1.6, "zorder": 4}
            axis.plot([crossed.length], [_between(times, crossed.length)], "o", **ring)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xticks(comparison.options.lengths, [f"{length:,}" for length in comparison.options.lengths])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("tokens")
    axis.set_ylabel("ms")
    axis.grid(True, alpha=0.25)


def _between(times: dict[int, float], length: float) -> float:
    """The value on the drawn line: linear between the logarithms."""
    a = max(at for at in times if at <= length)
    b = min(at for at in times if at >= length)
    share = 0.0 if a == b else math.log(length / a) / math.log(b / a)
    return float(times[a] ** (1 - share) * times[b] ** share)

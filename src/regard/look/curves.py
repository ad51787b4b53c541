"""Curves of training runs as one picture: a panel per quantity, a line per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .._extras import extra
from ..errors import NotSupported

Curve = tuple[Sequence[float], Sequence[float]]  # steps, values


def save_curves(panels: Mapping[str, Mapping[str, Curve]], path: Path) -> Path:
    """Write a PNG file: quantity → run → its curve over steps. Panels without any curve are left out.

    Args:
        panels: quantity → run → its curve over steps.
        path: PNG file to write.
    """
    with extra("look"):
        from matplotlib.figure import Figure  # slow to import

    from .axes import drawable
    from .terminal import readable

    drawn = {title: curves for title, curves in panels.items() if any(steps for steps, _ in curves.values())}
    if not drawn:
        raise NotSupported("no run here has a curve to plot yet; train one for some steps first")
    runs = list(dict.fromkeys(name for curves in drawn.values() for name in curves))
    figure = Figure(figsize=(9, 1 + 3 * len(drawn)), layout="constrained")
    lines = {}
    for axis, (title, curves) in zip(figure.subplots(len(drawn), squeeze=False).flat, drawn.items(), strict=True):
        for name, (steps, values) in curves.items():
            n = runs.index(name)
            style = ("-", "--", ":")[n // 10 % 3]  # there are ten colours
            (lines[name],) = axis.plot(steps, values, style, color=f"C{n % 10}", marker="o" if len(steps) == 1 else "", label=name)
        axis.set_xlabel("step")
        (shown,), style_of_text = drawable([readable(title, 60)])
        axis.set_ylabel(shown, **style_of_text)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    named = [name for name in runs if name in lines]
    shown_names, style_of_text = drawable([readable(name, 60) for name in named])
    legend = figure.legend([lines[name] for name in named], shown_names, loc="outside right upper", frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set(**style_of_text)
    try:
        figure.savefig(path, dpi=150)
    except OSError as wrong:
        raise NotSupported(f"cannot write {path}: {wrong.strerror or wrong}; choose another file") from wrong
    return path

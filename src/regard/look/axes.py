"""Parts that all pictures share: figures, colours, tick labels, titles, fonts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._extras import extra
from ..errors import ShapeError
from .map import Map
from .scales import Scale
from .terminal import readable, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

DPI = 150
SMALLEST = 5.5  # points: labels that need a smaller font are left out, and positions stand there
SEQUENTIAL = "Blues"  # colormaps: non-negative weights
DIVERGING = "RdBu"  # weights of both signs


def new_figure(width: float, height: float) -> Figure:
    """New figure; sizes in inches."""
    with extra("look"):
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def colours(signed: bool, cmap: str = SEQUENTIAL) -> ScalarMappable:
    """Colours of shades."""
    with extra("look"):
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(-1, 1), DIVERGING) if signed else ScalarMappable(Normalize(0, 1), cmap)


def paint(axis: Axes, shades: Tensor, m: Map, signed: bool) -> None:
    """Shades as colours; square cells, unless the picture would be too thin."""
    for spine in axis.spines.values():
        spine.set(color="0.7", linewidth=0.6)
        spine.set_position(("outward", 0.8))  # else it hides the first column of a long map, where attention often sinks
    if not shades.numel():
        raise ShapeError(f"{m.layer}: an empty matrix, {tuple(shades.shape)}, has no picture")
    colour = colours(signed)
    axis.imshow(
        shades.numpy(),
        interpolation="nearest",
        aspect="auto" if is_thin(*shades.shape) else "equal",
        cmap=colour.cmap,
        clim=colour.get_clim(),
    )


def is_thin(rows: int, columns: int) -> bool:
    return max(rows, columns) > 6 * min(rows, columns)


def add_colorbar(figure: Figure, axes: Any, scale: Scale, signed: bool, cmap: str = SEQUENTIAL, **style: Any) -> None:
    """Add a colour bar with the weights that the shades stand for."""
    bar = figure.colorbar(colours(signed, cmap), ax=axes, pad=0.02, **style)
    ticks = scale.ticks(signed)
    bar.set_ticks([shade for shade, _ in ticks], labels=[label for _, label in ticks])
    bar.ax.tick_params(labelsize=7)
    bar.set_label(scale.legend.replace(" (", "\n(") if figure.get_figheight() < 4 else scale.legend, fontsize=8)


def fit_labels(labels: list[str], room: float) -> bool:
    """Return whether `room` inches take all labels of an axis."""
    return 72 * room >= SMALLEST * max(len(labels), 1)


def set_ticks(axis: Axes, side: str, labels: Iterable[str], positions: tuple[int, ...], block: int, room: float, named: bool) -> None:
    """Labels where `room` inches take them all, else positions every 5, 10, 20, 50 …; `block` labels share a cell."""
    labels = [readable(label, 18) for label in labels]
    if named and fit_labels(labels, room):
        at, size = range(len(labels)), min(8.0, 72 * room / max(len(labels), 1))
        shown, style = drawable(labels)
    else:
        steps = (base * 10**power for power in range(9) for base in (1, 2, 5))
        step = next(step for step in steps if len(labels) / step <= min(max(room / 0.35, 2), 20))
        at, size, style = range(0, len(labels), step), 7.0, {}
        shown = [str(positions[n]) for n in at]
    places = [(n + 0.5) / block - 0.5 for n in at]
    if side == "x":
        steep = named and max(map(len, shown), default=0) > 2 and len(at) == len(labels)
        axis.set_xticks(places, shown, rotation=90 if steep else 0, fontsize=size, **style)
    else:
        axis.set_yticks(places, shown, fontsize=size, **style)
    axis.tick_params(length=2, pad=2)


def set_title(figure: Figure, m: Map, more: str = "") -> None:
    set_heading(figure, title(m) + (f"\n{more}" if more else "") + ("" if m.normalised else "\nrows do not sum to one"))


def set_heading(figure: Figure, heading: str) -> None:
    (heading,), style = drawable([heading])
    figure.suptitle(heading, fontsize=9, wrap=True, **style)


def centre_heading(figure: Figure) -> None:
    """Centre the heading over the plots, without labels and colour bars, as far as the heading stays inside the figure."""
    heading = figure._suptitle  # type: ignore[attr-defined]
    if heading is None:
        return
    figure.draw_without_rendering()
    plots = [axis.get_position() for axis in figure.axes if axis.get_label() != "<colorbar>"]
    half = heading.get_window_extent().width / figure.bbox.width / 2 + 0.01
    middle = (min(box.x0 for box in plots) + max(box.x1 for box in plots)) / 2
    heading.set_x(min(max(middle, half), max(1 - half, 0.5)))
    heading.set_wrap(False)  # what fits now must not be wrapped again around its new place


def drawable(labels: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Labels and their text style: fonts that have their characters, □ for what no font has; $ is not parsed as a formula."""
    families, missing = _fonts("".join(sorted(set("".join(labels)) - {"\n"})))
    lost = str.maketrans(dict.fromkeys(missing, "□"))
    return [label.translate(lost) for label in labels], {"fontfamily": list(families), "parse_math": False}


@lru_cache(maxsize=64)
def _fonts(characters: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """matplotlib's own font and installed ones that have what it lacks; and the characters that no font has."""
    with extra("look"):
        from matplotlib import font_manager

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
    with extra("look"):
        from matplotlib import font_manager

    try:
        font = font_manager.get_font(file)
    except (OSError, RuntimeError):  # bitmap fonts, and files deleted since fonts were listed
        return characters
    return {c for c in characters if not font.get_char_index(ord(c))}

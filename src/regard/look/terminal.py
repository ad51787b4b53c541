"""Maps as text, for terminals."""

from __future__ import annotations

import shutil
import unicodedata

from torch import Tensor, nn

from ..errors import ShapeError
from .maps import MEAN, Map

SHADES = " ░▒▓█"
CAPTION = "weights show where values were read from, not what mattered"


def to_text(m: Map, batch: int = 0, columns: int | None = None) -> str:
    """The first head of a map as shaded blocks, one line per query, scaled to its largest weight; a minus marks negative weights.

    A matrix wider than `columns` (the terminal's by default), or longer than 64 lines, is pooled: a block shows its largest weight.
    """
    matrix = head_matrix(m, batch)
    names, keys = ([readable(label, 14) for label in side] for side in m.labels(batch))
    margin = max((_display_width(name) for name in names), default=0)
    cells = ((columns or shutil.get_terminal_size((100, 30)).columns) - margin - 2) // 2
    pooled = pool(matrix, 64, max(cells, 8))
    down, across = (-(-matrix.shape[n] // max(pooled.shape[n], 1)) for n in (0, 1))
    top = float(pooled.abs().max()) if pooled.numel() else 0.0
    lines = [title(m) + ("" if max(down, across) <= 1 else f"  (largest of each {down} × {across} block)")]
    for n, row in enumerate(pooled.tolist()):
        blocks = "".join(_cell(value / top if top else 0.0) for value in row)
        lines.append(f"{_pad(names[n * down], margin)} │{blocks}")
    lines.append(" " * margin + " └" + "──" * pooled.shape[1])
    shown = keys[::across]
    if max(map(_display_width, shown), default=0) <= 2:
        lines.append(" " * (margin + 2) + "".join(_pad(name, 2, left=False) for name in shown))
    else:  # vertically: names are longer than a column is wide
        tall = max(map(len, shown))
        lines += [" " * (margin + 2) + "".join(_pad(name[n : n + 1], 2, left=False) for name in shown).rstrip() for n in range(tall)]
    lines.append(f"{SHADES[-1]} = {top:.3g}" + ("" if m.normalised else "; rows do not sum to one") + f"; {CAPTION}")
    return "\n".join(lines)


def _cell(share: float) -> str:
    shade = SHADES[min(round(abs(share) * (len(SHADES) - 1)), len(SHADES) - 1)]
    return "-" + shade if share < 0 and shade != " " else shade * 2


def title(m: Map) -> str:
    """Layer, head, mechanism and pattern, in one line."""
    head = "" if len(m.heads) != 1 else ", mean of heads" if m.heads[0] == MEAN else f", head {m.heads[0]}"
    return f"{m.layer}{head} · {m.mechanism}" + ("" if m.pattern == "full" else f" · {readable(m.pattern, 48)}")


def head_matrix(m: Map, batch: int) -> Tensor:
    """The first head of a batch row."""
    return batch_row(m, batch)[0]


def batch_row(m: Map, batch: int) -> Tensor:
    """weights_HLM of a batch row, as float."""
    if not 0 <= batch < len(m.weights_BHLM):
        raise ShapeError(f"{m.layer}: batch={batch}; expected one of {len(m.weights_BHLM)} batch rows, counted from 0")
    return m.weights_BHLM[batch].float()


def pool(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """At most rows × columns, each the weight of largest magnitude in its block, so that thin lines stay visible."""
    if not matrix.numel() or (matrix.shape[0] <= rows and matrix.shape[1] <= columns):
        return matrix
    size = (-(-matrix.shape[0] // rows), -(-matrix.shape[1] // columns))
    high, low = (nn.functional.max_pool2d(x[None], size, ceil_mode=True)[0] for x in (matrix, -matrix))
    return high.where(high >= low, -low)


def readable(label: str, longest: int) -> str:
    """A label with visible white space and control characters, truncated."""
    signs = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
    if label.strip() != label or not label:
        first, end = len(label) - len(label.lstrip()), len(label.rstrip())
        label = "".join(c if first <= n < end else signs.get(c, c) for n, c in enumerate(label))
    label = "".join(signs[c] if c in "\n\t\r" else c if c.isprintable() else f"\\x{ord(c):02x}" for c in label)
    return label if len(label) <= longest else label[: longest - 1] + "…"


def _display_width(label: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def _pad(label: str, width: int, left: bool = True) -> str:
    space = " " * (width - _display_width(label))
    return space + label if left else label + space

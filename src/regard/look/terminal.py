"""Maps as text, for terminals."""

from __future__ import annotations

import re
import shutil
import unicodedata

import torch
from torch import Tensor

from ..errors import ShapeError
from .layouts import Grid, Tree
from .map import MEAN, Map
from .scales import Scale, ScaleName, pool, shaded

SHADES = " ░▒▓█"
MAX_LINES = 64
CAPTION = "weights show where values were read from, not what mattered"


def to_text(m: Map, batch: int = 0, columns: int | None = None, scale: ScaleName = "row") -> str:
    """The first head of a map as shaded blocks, one line per query, and what a full block stands for; a minus marks negative weights.

    A matrix wider than `columns` (the terminal's by default), or longer than 64 lines, is pooled: a block shows its darkest shade, and
    positions take the place of labels. Values of queries end their lines, with the key of the largest weight; those of keys are below.
    """
    if isinstance(m.layout, Grid) and (m.queries == m.keys or len(m.rows) == 1):
        return _grid_text(m, batch, scale)
    if isinstance(m.layout, Tree) and len(m.rows) == 1:
        from .trees import document_text  # which draws with what is here

        return document_text(m, batch, columns)
    matrix = head_matrix(m, batch)
    names, keys = m.labels(batch)
    width = columns or shutil.get_terminal_size((100, 30)).columns
    maxima = 7 if scale == "row" else 0  # room for the largest weight of each row
    down = -(-matrix.shape[0] // MAX_LINES)
    beside = _beside(m, matrix, keys) if down <= 1 else []
    maxima += max(map(display_width, beside), default=0)
    names = [readable(name, 14) for name in (names if down <= 1 else map(str, m.rows[::down]))]
    below = m.key_values.name if m.key_values else ""
    margin = max((display_width(name) for name in (*names, below)), default=0)
    across = -(-matrix.shape[1] // max((width - margin - 2 - maxima) // 2, 8))
    keys = [readable(key, 14) for key in (keys if across <= 1 else map(str, m.columns[::across]))]
    fitted, (shades,) = shaded([matrix], [(down, across)], scale)
    largest = pool(matrix, down, max(matrix.shape[1], 1))
    lines = [title(m) + ("" if max(down, across) <= 1 else f"  (largest of each {down} × {across} block)")]
    for n, row in enumerate(shades.tolist()):
        line = f"{_pad(names[n], margin)} │{''.join(map(_cell, row))}"
        if scale == "row" and largest.numel():
            line = f"{line} {float(largest[n, 0]):{'<4' if beside else ''}.2g}"
        lines.append(f"{line}{beside[n]}" if beside else line)
    lines.append(" " * margin + " └" + "──" * shades.shape[1])
    if m.key_values:
        numbers = pool(torch.tensor([m.key_values.numbers]), 1, max(across, 1))[0]
        top = max(float(numbers.max()), 1e-9)
        lines.append(f"{_pad(below, margin)}  {''.join(map(_cell, (numbers / top).tolist()))} {top:.2g}")
    if max(map(display_width, keys), default=0) <= 2:
        lines.append(" " * (margin + 2) + "".join(_pad(key, 2, left=False) for key in keys))
    else:  # vertically: labels are longer than a column is wide
        tall = max(map(len, keys))
        lines += [" " * (margin + 2) + "".join(_pad(key[n : n + 1], 2, left=False) for key in keys).rstrip() for n in range(tall)]
    lines += [f"{SHADES[-1]} = {fitted.darkest}" + ("" if m.normalised else "; rows do not sum to one"), CAPTION]
    return "\n".join(lines)


def _beside(m: Map, matrix: Tensor, keys: list[str]) -> list[str]:
    """The value of each query, and the key that it attends to most."""
    if not m.query_values or not matrix.numel():
        return []
    best = (readable(keys[n], 14) for n in matrix.abs().argmax(-1).tolist())
    return [f"  {m.query_values.name} {value:.2f} ← {key}" for value, key in zip(m.query_values.numbers, best, strict=True)]


def _grid_text(m: Map, batch: int, scale: ScaleName) -> str:
    """Weights over the patches of an image: those of the class token, or the mean over all of them, at their places."""
    assert isinstance(m.layout, Grid)
    row_M = over_grid(m, batch)
    every = torch.zeros(m.keys)
    every[torch.tensor(m.columns)] = row_M
    grid = m.layout.side_by_side(every)
    fitted = Scale.fit("global" if scale == "row" else scale, [grid])
    who = "the class token" if m.layout.prefix_tokens else "the mean patch"
    if len(m.rows) == 1 and m.queries != m.keys and m.query_labels:
        who = m.labels(batch)[0][0]
    lines = [title(m) + f" · of {who} over {grid.shape[0]} × {grid.shape[1]} patches"]
    lines += [f"│{''.join(map(_cell, row))}│" for row in fitted.shades(grid).tolist()]
    return "\n".join([*lines, f"{SHADES[-1]} = {fitted.darkest}", CAPTION])


def over_grid(m: Map, batch: int = 0, query: int | None = None) -> Tensor:
    """weights_M of one head over all keys: of `query`, else of the class token before a grid, else the mean over all queries."""
    weights_LM = head_matrix(m, batch)
    if query is not None:
        return weights_LM[m.rows.index(query)]
    return weights_LM[0] if len(m.rows) == 1 or (isinstance(m.layout, Grid) and m.layout.prefix_tokens) else weights_LM.mean(0)


def _cell(share: float) -> str:
    shade = SHADES[min(round(abs(share) * (len(SHADES) - 1)), len(SHADES) - 1)]
    return "-" + shade if share < 0 and shade != " " else shade * 2


def title(m: Map) -> str:
    """Layer, head, mechanism and pattern, in one line."""
    head = "" if len(m.heads) != 1 else ", mean of heads" if m.heads[0] == MEAN else f", head {m.heads[0]}"
    pattern = _PADDING.sub("padding masked", _NO_PADDING.sub("", m.pattern))
    return f"{m.layer}{head} · {m.mechanism}" + ("" if pattern in ("", "full") else f" · {readable(pattern, 48)}")


_NO_PADDING = re.compile(r"^lengths\(<1>\)( & |$)| & lengths\(<1>\)")  # the length of a single text: nothing is masked
_PADDING = re.compile(r"\blengths\(<\d+>\)")


def head_matrix(m: Map, batch: int) -> Tensor:
    """The first head of a batch row."""
    return batch_row(m, batch)[0]


def batch_row(m: Map, batch: int) -> Tensor:
    """weights_HLM of a batch row, as float."""
    if not 0 <= batch < len(m.weights_BHLM):
        raise ShapeError(f"{m.layer}: batch={batch}; expected one of {len(m.weights_BHLM)} batch rows, counted from 0")
    return m.weights_BHLM[batch].float()


def readable(label: str, longest: int) -> str:
    """A label with visible white space and control characters, truncated."""
    signs = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
    if label.strip() != label or not label:
        first, end = len(label) - len(label.lstrip()), len(label.rstrip())
        label = "".join(c if first <= n < end else signs.get(c, c) for n, c in enumerate(label))
    label = "".join(signs[c] if c in "\n\t\r" else c if c.isprintable() else f"\\x{ord(c):02x}" for c in label)
    return label if len(label) <= longest else label[: longest - 1] + "…"


def display_width(label: str) -> int:
    """Columns of a terminal that it takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def _pad(label: str, width: int, left: bool = True) -> str:
    space = " " * (width - display_width(label))
    return space + label if left else label + space

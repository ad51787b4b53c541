r"""Absolute positions, added to token embeddings.

$$PE_{t,2c} = \sin(t\,θ_c) \qquad PE_{t,2c+1} = \cos(t\,θ_c) \qquad θ_c = 10000^{-2c/D}$$

PE_{t+k} is PE_t rotated by fixed angles k·θ_c, so a linear map can shift by k positions. A learned table has a last position;
sinusoids have none. In an image half of the features encode the row, half the column.

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Gehring et al. 2017 (learned), arXiv:1705.03122; on grids
       Parmar et al. 2018, arXiv:1802.05751, and Carion et al. 2020, arXiv:2005.12872.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from ...errors import ShapeError
from ._base import Layout, Position, angles, cells, divisible
from .scaling import frequencies


def sinusoids(at: Tensor, width: int, base: float = 10_000.0, layout: Layout = "interleaved", dtype: torch.dtype = torch.float32) -> Tensor:
    """Sines and cosines of the positions, on a new last axis: in pairs (sin, cos, sin …), or all sines and then all cosines."""
    turn = angles(at, frequencies(width, base), dtype)
    pair = (turn.sin(), turn.cos())
    return (torch.stack(pair, -1).flatten(-2) if layout == "interleaved" else torch.cat(pair, -1)).to(dtype)


TABLE = 4096  # positions that are looked up in a table instead of computed for every token and step


@lru_cache(maxsize=16)
def _table(positions: int, width: int, base: float, layout: Layout, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # cached, and may be used in training later
        return sinusoids(torch.arange(positions), width, base, layout, dtype)


class Sinusoidal(Position):
    """Fixed sines and cosines, each pair with its own wavelength.

    Args:
        width: model width D.
        base: base of the wavelengths.
        layout: sines and cosines "interleaved" or in "halves".
    """

    def __init__(self, width: int, *, base: float = 10_000.0, layout: Layout = "interleaved"):
        super().__init__()
        divisible("the width of sinusoidal positions", width, 2)
        self.width, self.base, self.layout = width, base, layout

    def add(self, x_BLD: Tensor, at: Tensor) -> Tensor:
        _fits(self, x_BLD, self.width)
        if at.is_cpu and at.numel() and not torch.compiler.is_exporting():
            first, last = (int(end) for end in at.aminmax())
            if first >= 0 and last < max(TABLE, 4 * at.numel()):
                return x_BLD + _table(1 << last.bit_length(), self.width, self.base, self.layout, x_BLD.dtype)[at]
        return x_BLD + sinusoids(at, self.width, self.base, self.layout, x_BLD.dtype)


class Learned(Position):
    """A learned vector per position, for the first `length` positions, from row `offset` of the table on.

    Args:
        length: number of positions.
        width: model width D.
        offset: row of the table for position 0.
    """

    def __init__(self, length: int, width: int, *, offset: int = 0):
        super().__init__()
        self.table, self.offset = nn.Embedding(length + offset, width), offset

    def add(self, x_BLD: Tensor, at: Tensor) -> Tensor:
        _fits(self, x_BLD, self.table.embedding_dim)
        _inside(self, at, self.table.num_embeddings - self.offset, "positions")
        return x_BLD + self.table(at + self.offset if self.offset else at)


class GridSinusoidal(Position):
    """Sines and cosines of the row in the first half of the features, of the column in the second.

    The image is in row-major order with `columns` columns, after `prefix` tokens (a class token) that get no encoding.

    Args:
        width: model width D.
        columns: columns of the image.
        prefix: tokens before the image that get no encoding.
        base: base of the wavelengths.
        layout: sines and cosines "interleaved" or in "halves".
    """

    def __init__(self, width: int, columns: int, *, prefix: int = 0, base: float = 10_000.0, layout: Layout = "interleaved"):
        super().__init__()
        divisible("the width of positions on a grid", width, 4)
        self.width, self.columns, self.prefix, self.base, self.layout = width, columns, prefix, base, layout

    def add(self, x_BLD: Tensor, at: Tensor) -> Tensor:
        _fits(self, x_BLD, self.width)
        *axes, inside = cells(at, self.columns, self.prefix)
        encoding = torch.cat([sinusoids(axis, self.width // 2, self.base, self.layout, x_BLD.dtype) for axis in axes], -1)
        return x_BLD + encoding * inside[..., None]


class GridLearned(Position):
    """A learned vector per row in the first half of the features, a learned vector per column in the second.

    Args:
        width: model width D, even.
        rows: rows of the image.
        columns: columns of the image.
        prefix: tokens before the image that get no encoding.
    """

    def __init__(self, width: int, rows: int, columns: int, *, prefix: int = 0):
        super().__init__()
        divisible("the width of positions on a grid", width, 2)
        self.row, self.column = nn.Embedding(rows, width // 2), nn.Embedding(columns, width // 2)
        self.prefix = prefix

    def add(self, x_BLD: Tensor, at: Tensor) -> Tensor:
        _fits(self, x_BLD, 2 * self.row.embedding_dim)
        row, column, inside = cells(at, self.column.num_embeddings, self.prefix)
        _inside(self, row, self.row.num_embeddings, "rows")
        return x_BLD + torch.cat([self.row(row), self.column(column)], -1) * inside[..., None]


def _fits(scheme: Position, x_BLD: Tensor, width: int) -> None:
    if x_BLD.shape[-1] != width:
        raise ShapeError(
            f"{type(scheme).__name__} of width {width} cannot be added to embeddings of shape {tuple(x_BLD.shape)}; make both widths equal"
        )


def _inside(scheme: Position, at: Tensor, size: int, what: str) -> None:
    # reading the values would make a GPU wait, and there the lookup itself fails; in an export they are not known yet
    if at.numel() and at.device.type == "cpu" and not torch.compiler.is_exporting() and (int(at.max()) >= size or int(at.min()) < 0):
        raise ShapeError(
            f"{type(scheme).__name__} has {size} {what}, 0 to {size - 1}, got {int(at.min())} to {int(at.max())}; "
            "build a longer table, or use Sinusoidal or Rotary, which have no last position"
        )

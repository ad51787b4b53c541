r"""Axial attention: along the rows of a grid, then along its columns, so that two cheap layers connect all positions.

$$y = \mathrm{columns}(\mathrm{rows}(x)) \qquad \text{time } O\big(L \cdot (\text{rows} + \text{columns})\big) \text{ instead of } O(L^2)$$

The second attention reads the output of the first, so the two are layers in sequence and not one mechanism: no single matrix of
weights describes both. `capture` shows each.

Paper: Ho et al. 2019, "Axial attention in multidimensional transformers", arXiv:1912.12180; Wang et al. 2020, "Axial-DeepLab",
       arXiv:2003.07853, which applies the two directly one after the other, as here.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import ColumnAttention, RowAttention, State
from ..errors import PatternNotSupported, StateNotSupported
from ..patterns import Causal, Pattern, causal, full
from .multihead import MultiHead


class Axial(nn.Module):
    """Attention along rows, then columns, of a grid of `columns` columns in row-major order: a mixer for `Block`.

    Under `causal` both are causal, and a position attends to those above and to the left of it, itself included, but to none to the
    right of its column; `CausalAxial` attends to all earlier positions.

    Args:
        width: model width D.
        heads: number of heads of each of the two layers.
        columns: columns of the grid.

    Shape: x_BLD → out_BLD, with L positions in row-major order.
    """

    def __init__(self, width: int, heads: int, columns: int):
        super().__init__()
        self.rows = MultiHead(width, heads, RowAttention(columns))
        self.columns = MultiHead(width, heads, ColumnAttention(columns))

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        self._no_state(state)
        return self.columns(self.rows(x_BLD, pattern=pattern), pattern=pattern)

    def _no_state(self, state: State | None) -> None:
        if state is not None:
            name = type(self).__name__
            raise StateNotSupported(f"{name} cannot decode step by step: its second attention reads whole rows of the first; MultiHead can")


class CausalAxial(Axial):
    """Attention to all earlier positions in row-major order, in three layers: rows, columns downwards, and the row up to here.

    The first two read whole rows, so their output is shifted down by one row before it is used: a position receives the complete
    rows above it, and the last layer adds its own row up to itself.

    Paper: Ho et al. 2019, section 3 (outer and inner decoder, and the shift between them); here one layer of each.

    Args:
        width: model width D.
        heads: number of heads of each of the three layers.
        columns: columns of the grid.

    Shape: x_BLD → out_BLD, with L positions in row-major order.
    """

    def __init__(self, width: int, heads: int, columns: int):
        super().__init__(width, heads, columns)
        self.row_length = columns
        self.row_so_far = MultiHead(width, heads, RowAttention(columns))

    def forward(self, x_BLD: Tensor, pattern: Pattern = causal, state: State | None = None) -> Tensor:
        self._no_state(state)
        if not isinstance(pattern, Causal):
            raise PatternNotSupported(f"CausalAxial is always causal and supports `causal` only, not `{pattern}`; Axial takes any pattern")
        above_BLD = self.columns(self.rows(x_BLD), pattern=causal)
        above_BLD = F.pad(above_BLD, (0, 0, self.row_length, 0))[:, : x_BLD.shape[1]]
        return self.row_so_far(x_BLD + above_BLD, pattern=causal)

r"""Axial attention: a grid looks along its rows, then along its columns, so that two cheap looks reach everything.

$$y = \mathrm{columns}(\mathrm{rows}(x)) \qquad \text{time } O\big(L \cdot (\text{rows} + \text{columns})\big) \text{ instead of } O(L^2)$$

The second look is at what the first has made, so the two are layers in sequence and not one mechanism: no single matrix of
weights says where such a layer looks. `capture` shows both.

Paper: Ho et al. 2019, "Axial attention in multidimensional transformers", arXiv:1912.12180; Wang et al. 2020, "Axial-DeepLab",
       arXiv:2003.07853, which has the two directly after each other, as here.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import ColumnAttention, RowAttention, State
from ..errors import PatternNotSupported, StateNotSupported
from ..patterns import Causal, Pattern, causal, full
from .multihead import MultiHead


class Axial(nn.Module):
    """Rows, then columns, of a grid `columns` wide that is read row by row: a mixer for `Block`.

    Under `causal` each half is causal, and a position sees what is above and to the left of it, itself included, but nothing to
    the right of its column; `CausalAxial` sees all that came before.
    """

    def __init__(self, width: int, heads: int, columns: int):
        super().__init__()
        self.rows = MultiHead(width, heads, RowAttention(columns))
        self.columns = MultiHead(width, heads, ColumnAttention(columns))

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        _no_state(self, state)
        return self.columns(self.rows(x_BLD, pattern=pattern), pattern=pattern)  # type: ignore[no-any-return]


class CausalAxial(nn.Module):
    """Everything before a position in raster order, in three looks: rows, columns downwards, and the row up to here.

    The first two see whole rows, so what they have found is moved down by one row before it is used: a position learns of the
    rows above it, all of them whole, and the last look adds its own row up to itself.

    Paper: Ho et al. 2019, section 3 (outer and inner decoder, and the shift between them); here one layer of each.
    """

    def __init__(self, width: int, heads: int, columns: int):
        super().__init__()
        self.row_length = columns
        self.rows = MultiHead(width, heads, RowAttention(columns))
        self.columns = MultiHead(width, heads, ColumnAttention(columns))
        self.row_so_far = MultiHead(width, heads, RowAttention(columns))

    def forward(self, x_BLD: Tensor, pattern: Pattern = causal, state: State | None = None) -> Tensor:
        _no_state(self, state)
        if not isinstance(pattern, Causal):
            raise PatternNotSupported(f"CausalAxial is causal by its build and knows `causal`, not `{pattern}`; Axial takes any pattern")
        above_BLD = self.columns(self.rows(x_BLD), pattern=causal)
        above_BLD = F.pad(above_BLD, (0, 0, self.row_length, 0))[:, : x_BLD.shape[1]]
        return self.row_so_far(x_BLD + above_BLD, pattern=causal)  # type: ignore[no-any-return]


def _no_state(layer: nn.Module, state: State | None) -> None:
    if state is not None:
        name = type(layer).__name__
        raise StateNotSupported(f"{name} cannot go step by step: its second look is at whole rows of the first; MultiHead can")

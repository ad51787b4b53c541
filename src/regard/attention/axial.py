"""The two halves of axial attention: within the rows of a grid, and within its columns."""

from __future__ import annotations

from math import isqrt
from typing import Self, Unpack

from torch import Tensor

from ..kernels import Bias
from ..patterns import Pattern, full, same_column, same_row
from ._base import Facts
from ._patterned import Options, Patterned, in_columns
from ._state import State


class RowAttention(Patterned):
    r"""Every position of a grid looks along its row; positions are read row by row.

    $$o_i = \sum_{\lfloor j/w \rfloor = \lfloor i/w \rfloor} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·w·K), memory O(L·K). Under `full` and `causal` a row is one dense call; otherwise tiles.
    Use it:  for images and tables, followed by ColumnAttention: then any position is two steps away (`layers.Axial`).
    Avoid it: alone: rows never meet.
    Limits:  within one sequence; `width` is that of the grid, in positions.
    Paper:   Ho et al. 2019, "Axial attention in multidimensional transformers", arXiv:1912.12180, section 3.
    """

    facts = Facts(
        name="axial_row",
        year=2019,
        title="Axial attention in multidimensional transformers",
        paper="arXiv:1912.12180",
        formula="softmax(q·k / √K) v,  j in the row of i",
        time="L·w·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, width: int, **options: Unpack[Options]):
        super().__init__(same_row(width), **options)
        self.width = width

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(2, isqrt(length)))

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        if not self._plain(pattern, bias, state) or q_BLHK.shape[1] % self.width:
            return super().forward(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern)
        q, k, v = (x.unflatten(1, (-1, self.width)).flatten(0, 1) for x in (q_BLHK, k_BMHK, v_BMHV))  # rows take the place of the batch
        return self._average(q, k, v, pattern).reshape(*q_BLHK.shape[:3], v.shape[-1])


class ColumnAttention(Patterned):
    r"""Every position of a grid looks along its column; positions are read row by row.

    $$o_i = \sum_{j \bmod w = i \bmod w} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·M·K/w), memory O(L·K). Under `full` and `causal` a column is one dense call; otherwise, and with a bias,
             tiles, which find little to leave out.
    Use it:  for images and tables, after RowAttention: then any position is two steps away (`layers.Axial`).
    Avoid it: alone: columns never meet.
    Limits:  within one sequence; `width` is that of the grid, in positions. The last row may be shorter.
    Paper:   Ho et al. 2019, "Axial attention in multidimensional transformers", arXiv:1912.12180, section 3.
    """

    facts = Facts(
        name="axial_column",
        year=2019,
        title="Axial attention in multidimensional transformers",
        paper="arXiv:1912.12180",
        formula="softmax(q·k / √K) v,  j in the column of i",
        time="L·M·K/w",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, width: int, **options: Unpack[Options]):
        super().__init__(same_column(width), **options)
        self.width = width

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(2, isqrt(length)))

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        if not self._plain(pattern, bias, state):
            return super().forward(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern)
        return in_columns(lambda q, k, v: self._average(q, k, v, pattern), self.width, q_BLHK, k_BMHK, v_BMHV)

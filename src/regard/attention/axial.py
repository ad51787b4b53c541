"""The two halves of axial attention: within the rows of a grid and within its columns."""

from __future__ import annotations

from math import isqrt
from typing import Self, Unpack

import torch
from torch import Tensor

from ..bounds import Size
from ..patterns import same_column, same_row
from ._base import Call, Paper
from ._pattern import ColumnPatternAttention, PatternAttention, PatternFacts, SoftmaxOptions

PAIRS = 2**22  # of queries and keys whose scores are stored at once


class RowAttention(PatternAttention):
    r"""Each position of a grid, in row-major order, attends to its row.

    $$o_i = \sum_{\lfloor j/w \rfloor = \lfloor i/w \rfloor} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·w·K), memory O(L·K). Under `full` and `causal` each row is one dense call; other patterns use tiles.
    Use it:  for images and tables, followed by ColumnAttention: any two positions are then two steps apart (`layers.Axial`).
    Avoid it: alone: positions in different rows never interact.
    Limits:  self-attention only; `columns` is the width of the grid in positions.
    Args:
        columns: width w of the grid in positions.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Ho et al. 2019, "Axial attention in multidimensional transformers", arXiv:1912.12180, section 3.
    """

    facts = PatternFacts(
        name="axial_row",
        paper=Paper("Axial attention in multidimensional transformers", 2019, "arXiv:1912.12180"),
        formula="softmax(q·k / √K) v,  j in the row of i",
        time="L·w·K",
        memory="L·K",
    )

    def __init__(self, columns: Size, **options: Unpack[SoftmaxOptions]):
        super().__init__(same_row(columns), **options)
        self.columns = columns

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int, columns: int | None = None) -> Self:
        return cls(columns or max(2, isqrt(length)))

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        direction = self._direction(call)
        if direction is None or call.queries % self.columns:
            return super()._forward(q_BLHK, k_BMHK, v_BMHV, call)
        q, k, v = (x.unflatten(1, (-1, self.columns)).flatten(0, 1) for x in (q_BLHK, k_BMHK, v_BMHV))  # grid rows become batch rows
        at_once = max(1, PAIRS // (q.shape[2] * self.columns**2))  # grid rows: a call may store all of its scores
        parts = zip(*(x.split(at_once) for x in (q, k, v)), strict=True)
        return torch.cat([self._attend(q, k, v, direction) for q, k, v in parts]).reshape(*q_BLHK.shape[:3], v.shape[-1])


class ColumnAttention(ColumnPatternAttention):
    r"""Each position of a grid, in row-major order, attends to its column.

    $$o_i = \sum_{j \bmod w = i \bmod w} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j$$

    Cost:    time O(L·M·K/w), memory O(L·K). Under `full` and `causal` each column is one dense call; other patterns
             and biases use tiles, few of which can be skipped.
    Use it:  for images and tables, after RowAttention: any two positions are then two steps apart (`layers.Axial`).
    Avoid it: alone: positions in different columns never interact.
    Limits:  self-attention only; `columns` is the width of the grid in positions. The last row may be shorter.
    Args:
        columns: width w of the grid in positions.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Ho et al. 2019, "Axial attention in multidimensional transformers", arXiv:1912.12180, section 3.
    """

    facts = PatternFacts(
        name="axial_column",
        paper=Paper("Axial attention in multidimensional transformers", 2019, "arXiv:1912.12180"),
        formula="softmax(q·k / √K) v,  j in the column of i",
        time="L·M·K/w",
        memory="L·K",
    )

    def __init__(self, columns: Size, **options: Unpack[SoftmaxOptions]):
        super().__init__(same_column(columns), columns, **options)

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int, columns: int | None = None) -> Self:
        return cls(columns or max(2, isqrt(length)))

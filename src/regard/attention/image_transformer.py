"""Local attention of the Image Transformer: blocks of queries share one memory, in one dimension or in two."""

from __future__ import annotations

from math import isqrt
from typing import Self, Unpack

from ..patterns import block_memory, grid_memory
from ._base import Facts
from ._patterned import Options, Patterned


class Image1DAttention(Patterned):
    r"""Blocks of `block` queries share a memory: the block itself and the `memory` positions before it.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : c\lfloor i/c \rfloor - m \le j < c\lfloor i/c \rfloor + c \}$$

    Cost:    time O(L·(c + m)·K), memory O(L·K). It streams with a cache of 2·(c + m) keys.
    Use it:  for pixels in raster order, with `causal`: the order of generation.
    Avoid it: where the row above matters more than what came before: Image2DAttention sees both.
    Limits:  within one sequence. The memory lies before the block: without `causal` a query sees to the end of its block only.
    Paper:   Parmar et al. 2018, "Image transformer", arXiv:1802.05751, section 3.3 (1D local attention; blocks of 256, memories of 512).
    """

    facts = Facts(
        name="image_1d",
        year=2018,
        title="Image transformer",
        paper="arXiv:1802.05751",
        formula="softmax(q·k / √K) v,  j in the block of i or m before it",
        time="L·(c + m)·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, block: int = 256, memory: int = 512, **options: Unpack[Options]):
        super().__init__(block_memory(block, memory), **options)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(max(1, length // 16), max(1, length // 8))


class Image2DAttention(Patterned):
    r"""Rectangles of queries share a memory: the rectangle itself, extended upwards and to both sides.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : \mathrm{row}_j \in [R_i - u,\, R_i + h) \,\land\, \mathrm{column}_j \in [C_i - e,\, C_i + w + e) \}$$

    (R_i, C_i) is the upper left corner of the rectangle of query i, h × w its size, u and e how far memory reaches up and aside.

    Cost:    time O(L·(h + u)·(w + 2e)·K), memory O(L·K). It streams with a cache of some 2·(h + u) rows.
    Use it:  for images in raster order, with `causal`: neighbours above are near, however wide the image.
    Avoid it: for what is no grid; and for generation by blocks, see below.
    Limits:  within one sequence; `width` is the width of the grid, times the channels where they are positions of their own.
    Paper:   Parmar et al. 2018, "Image transformer", arXiv:1802.05751, section 3.3 (2D local attention).
    We differ: the paper generates rectangle by rectangle; `causal` here is the plain raster order, row by row over the whole grid.
    """

    facts = Facts(
        name="image_2d",
        year=2018,
        title="Image transformer",
        paper="arXiv:1802.05751",
        formula="softmax(q·k / √K) v,  j in the rectangle of i, extended up and aside",
        time="L·(h + u)·(w + 2e)·K",
        memory="L·K",
        cross=False,
        positional=True,
    )

    def __init__(self, width: int, block: tuple[int, int] = (8, 32), *, up: int = 8, side: int = 16, **options: Unpack[Options]):
        super().__init__(grid_memory(*block, up, side, width), **options)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        wide = max(2, isqrt(length))
        return cls(wide, (max(1, wide // 4), wide // 2), up=max(1, wide // 4), side=max(1, wide // 8))

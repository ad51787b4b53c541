"""Local attention of the Image Transformer: blocks of queries share one memory, in one dimension or two."""

from __future__ import annotations

from math import isqrt
from typing import Self, Unpack

from ..bounds import Count, Size
from ..patterns import block_memory, grid_memory
from ._base import Paper
from ._pattern import PatternAttention, PatternFacts, SoftmaxOptions


class Image1DAttention(PatternAttention):
    r"""Each block of `block` queries attends to itself and to the `memory` positions before it.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : c\lfloor i/c \rfloor - m \le j < c\lfloor i/c \rfloor + c \}$$

    Cost:    time O(L·(c + m)·K), memory O(L·K). Streams with a cache of 2·(c + m) keys.
    Use it:  with `causal`, for pixels in raster order, the order of generation.
    Avoid it: where the row above matters more than the preceding pixels: Image2DAttention covers both.
    Limits:  self-attention only. The memory precedes the block: without `causal`, a query attends up to the end of its block.
    Args:
        block: positions per block c of queries.
        memory: positions m before the block that it attends to.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Parmar et al. 2018, "Image transformer", arXiv:1802.05751, section 3.3 (1D local attention; blocks of 256, memories of 512).
    """

    facts = PatternFacts(
        name="image_1d",
        paper=Paper("Image transformer", 2018, "arXiv:1802.05751"),
        formula="softmax(q·k / √K) v,  j in the block of i or m before it",
        time="L·(c + m)·K",
        memory="L·K",
    )

    def __init__(self, block: Size = 256, memory: Count = 512, **options: Unpack[SoftmaxOptions]):
        super().__init__(block_memory(block, memory), **options)
        self.block, self.memory = block, memory

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(max(1, length // 16), max(1, length // 8))


class Image2DAttention(PatternAttention):
    r"""Each rectangle of queries attends to itself, extended upwards and to both sides.

    $$o_i = \sum_{j \in S_i} \mathrm{softmax}_j\big(q_i^\top k_j / \sqrt{K}\big)\, v_j, \qquad
      S_i = \{ j : \mathrm{row}_j \in [R_i - u,\, R_i + h) \,\land\, \mathrm{column}_j \in [C_i - e,\, C_i + w + e) \}$$

    (R_i, C_i) is the upper left corner of the rectangle of query i, h × w its size; the memory extends u rows up and e columns to each side.

    Cost:    time O(L·(h + u)·(w + 2e)·K), memory O(L·K). Streams with a cache of about 2·(h + u) rows.
    Use it:  with `causal`, for images in raster order: neighbours above are near, however wide the image.
    Avoid it: for data that is not a grid, and for generation by blocks (see below).
    Limits:  self-attention only; `columns` is the width of the grid, times the channels if each is a position of its own.
    Args:
        columns: width of the grid in positions.
        block: rows and columns (h, w) of a rectangle of queries.
        up: rows u above the rectangle that it attends to.
        side: columns e on either side of the rectangle that it attends to.
        **options: options of `SoftmaxAttention`: `scale`, `softcap`, `sinks`, `dropout`.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Parmar et al. 2018, "Image transformer", arXiv:1802.05751, section 3.3 (2D local attention).
    We differ: the paper generates rectangle by rectangle; here `causal` is plain raster order, row by row over the whole grid.
    """

    facts = PatternFacts(
        name="image_2d",
        paper=Paper("Image transformer", 2018, "arXiv:1802.05751"),
        formula="softmax(q·k / √K) v,  j in the rectangle of i, extended up and aside",
        time="L·(h + u)·(w + 2e)·K",
        memory="L·K",
    )

    def __init__(
        self, columns: Size, block: tuple[Size, Size] = (8, 32), *, up: Count = 8, side: Count = 16, **options: Unpack[SoftmaxOptions]
    ):
        super().__init__(grid_memory(*block, up, side, columns), **options)
        self.columns, self.block, self.up, self.side = columns, block, up, side

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int, columns: int | None = None) -> Self:
        wide = columns or max(2, isqrt(length))
        high = max(2, length // wide)
        return cls(wide, (max(1, high // 4), max(1, wide // 2)), up=max(1, high // 4), side=max(1, wide // 8))

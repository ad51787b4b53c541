"""Learned memory tokens before a sequence: storage for global information, and a path between distant tokens in two layers.

Paper: Burtsev et al. 2020, "Memory transformer", arXiv:2006.11527; Guo et al. 2019, "Star-transformer", arXiv:1902.09113.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..patterns import Full, Pattern, behind, causal, full, lengths, to_tokens, tokens


class MemoryTokens(nn.Module):
    """`count` learned rows that pass through the blocks in front of x and are removed afterwards.

    >>> x_BLD = memory.put(x_BLD)
    >>> for block in blocks: x_BLD = block(x_BLD, memory.both_ways(window(64)))
    >>> x_BLD, memory_BCD = memory.take(x_BLD)

    `both_ways`: the memory attends to all tokens, and all tokens attend to the memory (with `window(1)` the Star-transformer).
    `read_only`: tokens attend to the memory, the memory to itself. Causal models need this one: otherwise what the memory
    reads of the future would reach earlier tokens one layer later.

    Absolute positions are shifted by `count`; distances are unchanged.

    Args:
        width: model width D.
        count: number of memory rows C.

    Shape: put: x_BLD → (B, C + L, D); take: (B, C + L, D) → x_BLD, memory_BCD.
    """

    def __init__(self, width: int, count: int):
        super().__init__()
        if count < 0:
            raise ShapeError(f"MemoryTokens: count={count}; expected at least 0")
        self.rows_CD = nn.Parameter(torch.randn(count, width) * width**-0.5)

    def put(self, x_BLD: Tensor) -> Tensor:
        """The learned rows, followed by x."""
        if x_BLD.shape[-1] != self.rows_CD.shape[1]:
            raise ShapeError(f"MemoryTokens of width {self.rows_CD.shape[1]} were given x {tuple(x_BLD.shape)}; make both widths equal")
        return torch.cat([self.rows_CD.to(x_BLD.dtype).expand(len(x_BLD), -1, -1), x_BLD], 1)

    def take(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """x, and the outputs of the learned rows, memory_BCD."""
        count = len(self.rows_CD)
        return x_BLD[:, count:], x_BLD[:, :count]

    def both_ways(self, pattern: Pattern = full, sizes: Tensor | None = None) -> Pattern:
        """`pattern` among the tokens; the memory attends to all and all attend to it. `sizes` are the real tokens per row of x."""
        rule = full if isinstance(pattern, Full) else behind(pattern, len(self.rows_CD)) | tokens(*self._positions)
        return rule if sizes is None else rule & lengths(sizes + len(self.rows_CD))

    def read_only(self, pattern: Pattern = causal) -> Pattern:
        """`pattern` among the tokens; all attend to the memory, which attends only to itself."""
        return behind(pattern, len(self.rows_CD)) | to_tokens(*self._positions)

    @property
    def _positions(self) -> range:
        return range(len(self.rows_CD))

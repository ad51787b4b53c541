"""Learned rows put before a sequence: a place to keep what concerns all of it, and a way between far tokens in two steps.

Paper: Burtsev et al. 2020, "Memory transformer", arXiv:2006.11527; Guo et al. 2019, "Star-transformer", arXiv:1902.09113.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..patterns import Full, Pattern, behind, causal, full, lengths, to_tokens, tokens


class MemoryTokens(nn.Module):
    """`count` learned rows that go through the blocks in front of x, and are taken off again.

    >>> x_BLD = memory.put(x_BLD)
    >>> for block in blocks: x_BLD = block(x_BLD, memory.both_ways(window(64)))
    >>> x_BLD, memory_BCD = memory.take(x_BLD)

    `both_ways`: the memory reads all tokens, and all tokens read the memory (the star of the Star-transformer with `window(1)`).
    `read_only`: tokens read the memory, the memory reads itself alone. Under `causal` it has to be this one: what the memory
    had read of the future would reach the past one layer later.

    Positions that count from the start of the row then stand `count` further on; distances are unchanged.
    """

    def __init__(self, width: int, count: int):
        super().__init__()
        if count < 0:
            raise ShapeError(f"MemoryTokens puts `count` rows before x, so at least 0, got {count}")
        self.rows_CD = nn.Parameter(torch.randn(count, width) * width**-0.5)

    def put(self, x_BLD: Tensor) -> Tensor:
        """The learned rows, then x."""
        if x_BLD.shape[-1] != self.rows_CD.shape[1]:
            raise ShapeError(f"MemoryTokens of width {self.rows_CD.shape[1]} cannot stand before x of shape {tuple(x_BLD.shape)}")
        return torch.cat([self.rows_CD.to(x_BLD.dtype).expand(len(x_BLD), -1, -1), x_BLD], 1)

    def take(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """x, and what became of the learned rows, memory_BCD."""
        count = len(self.rows_CD)
        return x_BLD[:, count:], x_BLD[:, :count]

    def both_ways(self, pattern: Pattern = full, sizes: Tensor | None = None) -> Pattern:
        """`pattern` among the tokens; everyone sees the memory, and it sees everyone. `sizes` are the real tokens of each row of x."""
        rule = full if isinstance(pattern, Full) else behind(pattern, len(self.rows_CD)) | tokens(*self._places)
        return rule if sizes is None else rule & lengths(sizes + len(self.rows_CD))

    def read_only(self, pattern: Pattern = causal) -> Pattern:
        """`pattern` among the tokens, and everyone sees the memory, which sees itself."""
        return behind(pattern, len(self.rows_CD)) | to_tokens(*self._places)

    @property
    def _places(self) -> range:
        return range(len(self.rows_CD))

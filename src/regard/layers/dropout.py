"""Dropout: the layer around `kernels.dropout`."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import dropout


class Dropout(nn.Module):
    """Each element is zeroed with probability `p` in training, and the others scaled up; nothing happens in evaluation."""

    def __init__(self, p: float = 0.0):
        super().__init__()
        if not 0 <= p <= 1:
            raise ShapeError(f"dropout={p}: expected a probability, from 0 to 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"

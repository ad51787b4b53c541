r"""Token embeddings with positional encodings.

$$x_t = \mathrm{dropout}\big(\sqrt{D}\,E[\mathrm{id}_t] + PE_t\big)$$

The factor √D belongs to the 2017 transformer, whose embeddings have entries of size 1/√D so that they also serve as the output
projection; GPT and BERT leave it out.

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.4; Press & Wolf 2016 (tied output), arXiv:1608.05859.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attention import positions
from ..errors import DtypeError, ShapeError
from .dropout import Dropout
from .packing import Packing
from .positions import Offset, Position


class Embedding(nn.Module):
    """One vector per token, plus its position. The row of `padding`, if given, is zero and gets no gradient."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        position: Position | None = None,
        *,
        scaled: bool = False,
        dropout: float = 0.0,
        padding: int | None = None,
    ):
        super().__init__()
        self.token = nn.Embedding(vocab_size, width, padding)
        self.position = position
        self.scale = width**0.5 if scaled else 1.0
        self.dropout = Dropout(dropout)

    def forward(self, ids_BL: Tensor, at: Offset | Tensor = 0, packing: Packing | None = None) -> Tensor:
        """`at`: the position of the first token (a state's), or of every token, (L,) or (B, L). With `packing`, x_1TD."""
        if ids_BL.dim() != 2:
            raise ShapeError(f"Embedding takes token ids (batch, length), got {tuple(ids_BL.shape)}; ids[None] makes a batch of one")
        if ids_BL.dtype.is_floating_point or ids_BL.dtype == torch.bool:
            raise DtypeError(f"Embedding takes token ids as integers, not {ids_BL.dtype}; convert with .long()")
        if not isinstance(at, Tensor) and (packing is not None or self.position is not None):
            at = positions(at, ids_BL.shape[1], ids_BL.device)
        if packing is not None and isinstance(at, Tensor):
            ids_BL, at = packing.packed(ids_BL), packing.packed(at.expand(ids_BL.shape))
        x_BLD: Tensor = self.token(ids_BL)
        if self.scale != 1:
            x_BLD = x_BLD * self.scale
        if self.position is not None and isinstance(at, Tensor):
            x_BLD = self.position.add(x_BLD, at)
        return self.dropout(x_BLD)

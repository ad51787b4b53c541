"""Documents packed into rows of tokens that do not attend to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers import Packing


@dataclass(frozen=True, eq=False)
class Documents:
    """The layout of packed documents: `position_BL` starts at 0 in each document, `rows` unpacks them to one row per document."""

    position_BL: Tensor
    rows: Packing  # packed: tokens of all rows of the batch in order, x_1TD; padded: (documents, longest)

    @classmethod
    def of(cls, document_BL: Tensor) -> Documents:
        """Consecutive tokens with equal numbers form a document."""
        B, L = document_BL.shape
        begins_BL = torch.ones_like(document_BL, dtype=torch.bool)
        begins_BL[:, 1:] = document_BL[:, 1:] != document_BL[:, :-1]
        at_L = torch.arange(L, device=document_BL.device)
        position_BL = at_L - torch.where(begins_BL, at_L, 0).cummax(1).values
        longest = int(position_BL.max()) + 1 if B * L else 0
        number_T = begins_BL.flatten().cumsum(0) - 1
        return cls(position_BL, Packing(int(begins_BL.sum()), longest, number_T * longest + position_BL.flatten()))

    @property
    def padding(self) -> float:
        """The size of the batch with one document per row, padded, relative to the packed one."""
        return self.rows.batch * self.rows.length / max(1, self.position_BL.numel())

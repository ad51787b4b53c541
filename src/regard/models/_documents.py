"""Several documents in one row of tokens, each read as if it were alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers import Packing


@dataclass(frozen=True, eq=False)
class Documents:
    """Where the tokens of each document stand: `place_BL` counts from its own beginning, `rows` gives each a row of its own."""

    place_BL: Tensor
    rows: Packing  # tokens of all rows of the batch, one behind the other, as x_1TD; padded, (documents, longest)

    @classmethod
    def of(cls, document_BL: Tensor) -> Documents:
        """A run of equal numbers is a document."""
        B, L = document_BL.shape
        begins_BL = torch.ones_like(document_BL, dtype=torch.bool)
        begins_BL[:, 1:] = document_BL[:, 1:] != document_BL[:, :-1]
        at_L = torch.arange(L, device=document_BL.device)
        place_BL = at_L - torch.where(begins_BL, at_L, 0).cummax(1).values
        longest = int(place_BL.max()) + 1 if B * L else 0
        number_T = begins_BL.flatten().cumsum(0) - 1
        return cls(place_BL, Packing(int(begins_BL.sum()), longest, number_T * longest + place_BL.flatten()))

    @property
    def padding(self) -> float:
        """How many times as large a batch of one document a row is."""
        return self.rows.batch * self.rows.length / max(1, self.place_BL.numel())

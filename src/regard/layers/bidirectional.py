"""A recurrent layer that reads each row of a batch in both directions and skips its padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Bidirectional(nn.Module):
    """An LSTM or a GRU in both directions: x_BLD becomes h_BLD, the states [h→ ; h←] of each token, each of size `width`.

    Padding, which is what comes after the first n_B tokens of a row, is not read, and its states are zeros. A row may be empty.
    """

    def __init__(self, cell: str, inputs: int, width: int):
        super().__init__()
        self.width = width
        self.layer = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](inputs, width, batch_first=True, bidirectional=True)

    def forward(self, x_BLD: Tensor, n_B: Tensor) -> Tensor:
        packed = pack_padded_sequence(x_BLD, n_B.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        h_BLD = pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=x_BLD.shape[1])[0]
        return h_BLD * (torch.arange(x_BLD.shape[1], device=n_B.device) < n_B[:, None])[..., None]

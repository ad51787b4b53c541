"""Recurrent layers that read each row of a batch in both directions and skip its padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels import bidirectional_gru, bidirectional_lstm


class Bidirectional(nn.Module):
    """An LSTM or a GRU in both directions: x_BLD becomes h_BLD, the states [h→ ; h←] of each token, each of size `width`.

    Padding, which is what comes after the first n_B tokens of a row, is not read, and its states are zeros. A row may be empty.
    Recurrent matrices are initialised orthogonal, the others as in PyTorch, and the forget gates of an LSTM open.
    """

    def __init__(self, inputs: int, width: int, gates: int):
        super().__init__()
        self.weight_2DG = nn.Parameter(torch.empty(2, inputs, gates * width).uniform_(-(width**-0.5), width**-0.5))
        self.bias_2G = nn.Parameter(torch.zeros(2, gates * width))
        self.recurrent_2WG = nn.Parameter(torch.empty(2, width, gates * width))
        with torch.no_grad():
            for direction in self.recurrent_2WG:
                for gate_WW in direction.chunk(gates, -1):
                    nn.init.orthogonal_(gate_WW)


class BiLSTM(Bidirectional):
    """Gates (i, f, o, g): PyTorch's LSTM, which orders them (i, f, g, o)."""

    def __init__(self, inputs: int, width: int):
        super().__init__(inputs, width, 4)
        with torch.no_grad():
            self.bias_2G[:, width : 2 * width] = 1

    def forward(self, x_BLD: Tensor, n_B: Tensor) -> Tensor:
        return bidirectional_lstm(x_BLD, n_B, self.weight_2DG, self.bias_2G, self.recurrent_2WG)


class BiGRU(Bidirectional):
    """Gates (r, z, n): PyTorch's GRU."""

    def __init__(self, inputs: int, width: int):
        super().__init__(inputs, width, 3)
        self.recurrent_bias_2G = nn.Parameter(torch.zeros(2, 3 * width))

    def forward(self, x_BLD: Tensor, n_B: Tensor) -> Tensor:
        return bidirectional_gru(x_BLD, n_B, self.weight_2DG, self.bias_2G, self.recurrent_2WG, self.recurrent_bias_2G)

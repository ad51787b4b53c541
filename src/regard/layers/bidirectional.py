"""A recurrent layer that reads each row of a batch in both directions and skips its padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import UnknownName
from ..kernels import bidirectional_gru, bidirectional_lstm

GATES = {"lstm": 4, "gru": 3}


class Bidirectional(nn.Module):
    """An LSTM or a GRU in both directions: x_BLD becomes h_BLD, the states [h→ ; h←] of each token, each of size `width`.

    Padding, which is what comes after the first n_B tokens of a row, is not read, and its states are zeros. A row may be empty. Packed tokens,
    x_TD, all of the first row before those of the second, become h_TD.
    These are PyTorch's cells; it orders the gates of an LSTM (i, f, g, o), and here they are (i, f, o, g). Recurrent matrices are initialised
    orthogonal, the others as in PyTorch, and the forget gates of an LSTM open.

    Args:
        cell: "lstm" or "gru".
        inputs: size of the input features.
        width: size of the states of each direction.

    Shape: x_BLD, n_B → h_BLD, or packed x_TD, n_B → h_TD; D is 2 · `width` afterwards.
    """

    def __init__(self, cell: str, inputs: int, width: int):
        super().__init__()
        if cell not in GATES:
            raise UnknownName("recurrent cell", cell, GATES)
        gates, bound = GATES[cell], width**-0.5
        self.cell = cell
        self.weight_2DG = nn.Parameter(torch.empty(2, inputs, gates * width).uniform_(-bound, bound))
        self.bias_2G = nn.Parameter(torch.zeros(2, gates * width))
        self.recurrent_2WG = nn.Parameter(torch.empty(2, width, gates * width))
        self.recurrent_bias_2G = nn.Parameter(torch.zeros(2, gates * width)) if cell == "gru" else None
        with torch.no_grad():
            for direction in self.recurrent_2WG:
                for gate_WW in direction.chunk(gates, -1):
                    nn.init.orthogonal_(gate_WW)
            if cell == "lstm":
                self.bias_2G[:, width : 2 * width] = 1

    def forward(self, x: Tensor, n_B: Tensor) -> Tensor:
        if self.recurrent_bias_2G is None:
            return bidirectional_lstm(x, n_B, self.weight_2DG, self.bias_2G, self.recurrent_2WG)
        return bidirectional_gru(x, n_B, self.weight_2DG, self.bias_2G, self.recurrent_2WG, self.recurrent_bias_2G)

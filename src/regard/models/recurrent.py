r"""Parts of the recurrent models: an encoder that skips padding, and layers run over a whole sequence or step by step.

$$\text{rnn: } h = \tanh(Wx + Uh + b) \qquad
  \text{lstm: } c = σ(f)\,c + σ(i)\tanh(g),\; h = σ(o)\tanh(c), \quad (i, f, g, o) = Wx + Uh + b$$
$$\text{gru: } n = \tanh\big(W_n x + b + r\,(U_n h + b')\big),\; h = (1 - z)\,n + z\,h, \quad (r, z) = σ(Wx + Uh + b)$$

These are PyTorch's forms. Its GRU applies r after the matmul with U (Cho 2014 and Bahdanau 2014: before), so parameters
cannot be moved between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..errors import BadConfig
from ..layers import Dropout
from .model import Depth, Probability, Size
from .translator import Translator, TranslatorConfig

CELLS: dict[str, type[nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
Hidden = tuple[Tensor, ...]  # h, and for an LSTM c: each (B, depth, width)


class RecurrentEncoder(nn.Module):
    """Embeds and reads a source, in one direction or both: annotations h_BMD, and the final hidden state.

    `width` is that of one direction. Annotations are in the order of the source even if it is read backwards.

    Args:
        cell: "rnn", "gru" or "lstm".
        vocab_size: number of tokens.
        embedding: size of the token embeddings.
        width: size of the states of one direction.
        depth: number of layers.
        both: read in both directions.
        backwards: read the source from its end.
        dropout: dropout rate of embeddings and between layers.

    Shape: source_BM, source_n_B → h_BMD and the final hidden state, (B, depth, width) per tensor.
    """

    def __init__(
        self,
        cell: str,
        vocab_size: int,
        embedding: int,
        width: int,
        *,
        depth: int = 1,
        both: bool = False,
        backwards: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.backwards, self.depth = backwards, depth
        self.token, self.dropout = nn.Embedding(vocab_size, embedding), Dropout(dropout)
        self.layers = _layers(cell, embedding, width, depth, dropout, both)

    def forward(self, source_BM: Tensor, source_n_B: Tensor) -> tuple[Tensor, Hidden]:
        if self.backwards:
            source_BM = flipped(source_BM, source_n_B)
        x_BME = self.dropout(self.token(source_BM))
        packed = pack_padded_sequence(x_BME, source_n_B.cpu(), batch_first=True, enforce_sorted=False)
        read, last = self.layers(packed)
        h_BMD, _ = pad_packed_sequence(read, batch_first=True, total_length=source_BM.shape[1])
        if self.backwards:
            h_BMD = flipped(h_BMD, source_n_B)
        # PyTorch's order is (depth · directions, B, width); its last *output* would be the first step of the backward direction
        both = (last,) if isinstance(last, Tensor) else last
        return h_BMD, tuple(x.unflatten(0, (self.depth, -1)).permute(2, 0, 1, 3).flatten(2) for x in both)


class RecurrentStack(nn.Module):
    """Stacked recurrent layers: over a whole sequence at once, or step by step with the same parameters.

    Args:
        cell: "rnn", "gru" or "lstm".
        inputs: size of the input features.
        width: size W of the states.
        depth: number of layers.
        dropout: dropout rate between layers.

    Shape: x_BLE, hidden → h_BLW, hidden; hidden is (B, depth, W) per tensor.
    """

    def __init__(self, cell: str, inputs: int, width: int, *, depth: int = 1, dropout: float = 0.0):
        super().__init__()
        self.cell, self.depth, self.width, self.dropout = cell, depth, width, dropout
        self.layers = _layers(cell, inputs, width, depth, dropout, False)

    def forward(self, x_BLE: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """The top layer's h_BLW, and the hidden state after the last step."""
        state = tuple(x.transpose(0, 1).contiguous() for x in hidden)
        h_BLW, last = self.layers(x_BLE, state if len(state) > 1 else state[0])
        return h_BLW, tuple(x.transpose(0, 1) for x in ((last,) if isinstance(last, Tensor) else last))

    def input_gates(self, x: Tensor) -> Tensor:
        """The input's part of the first layer's gates: independent of the hidden state, so computed for all steps at once."""
        return self._linear(x, "ih", 0)

    def step(self, gates_BG: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """The top layer's h_BW and the hidden state after one step, given its `input_gates`."""
        outputs: list[Hidden] = []
        for layer, old in enumerate(zip(*(x.unbind(1) for x in hidden), strict=True)):
            if layer:
                gates_BG = self._linear(F.dropout(outputs[-1][0], self.dropout, self.training), "ih", layer)
            outputs.append(self.update(gates_BG, self._linear(old[0], "hh", layer), old))
        return outputs[-1][0], tuple(torch.stack(x, 1) for x in zip(*outputs, strict=True))

    def from_hidden(self) -> tuple[Tensor, Tensor]:
        """Matrix (G, width) and bias of the hidden state's part of the first layer's gates."""
        return self.layers.weight_hh_l0, self.layers.bias_hh_l0  # type: ignore[return-value]  # nn.Module does not know their type

    def update(self, from_x: Tensor, from_h: Tensor, old: Hidden) -> Hidden:
        """The hidden state of one layer after a step, each (B, width), given the parts of its gates.

        Args:
            from_x: part of the gates that comes from the input.
            from_h: part of the gates that comes from the hidden state.
            old: hidden state of the layer before the step.
        """
        if self.cell == "rnn":
            return (torch.tanh(from_x + from_h),)
        if self.cell == "lstm":
            i, f, g, o = (from_x + from_h).chunk(4, -1)
            c = torch.sigmoid(f) * old[1] + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
        (both_x, new_x), (both_h, new_h) = (gates.split((2 * self.width, self.width), -1) for gates in (from_x, from_h))
        r, z = torch.sigmoid(both_x + both_h).chunk(2, -1)
        n = torch.tanh(new_x + r * new_h)
        return (n + z * (old[0] - n),)

    def _linear(self, x: Tensor, kind: str, layer: int) -> Tensor:
        return F.linear(x, getattr(self.layers, f"weight_{kind}_l{layer}"), getattr(self.layers, f"bias_{kind}_l{layer}"))


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(TranslatorConfig):
    embedding: Size = 256  # width of the token embeddings
    width: Size = 256  # units of the decoder; half of it per direction of a bidirectional encoder
    depth: Depth = 2  # number of layers
    cell: str = "lstm"  # rnn, gru or lstm
    bidirectional: bool = False  # read the source in both directions
    reverse_source: bool = True  # read the source backwards, so that its first token is close to the first target token
    dropout: Probability = 0.2  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("cell", CELLS)
        if self.bidirectional and self.width % 2:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; it must be even, half for each direction of the encoder")


class RecurrentTranslator(Translator):
    """Base of `Seq2Seq` and `Luong`: the encoder, whose directions together have the width of the decoder, and the embeddings."""

    config: RecurrentConfig

    def _build(self) -> None:
        c = self.config
        one_way, reading = c.width // 2 if c.bidirectional else c.width, {"both": c.bidirectional, "backwards": c.reverse_source}
        self.encoder = RecurrentEncoder(c.cell, c.source_vocab_size, c.embedding, one_way, depth=c.depth, dropout=c.dropout, **reading)
        self.token, self.dropout = nn.Embedding(c.target_vocab_size, c.embedding), Dropout(c.dropout)


def named(hidden: Hidden) -> dict[str, Tensor]:
    return dict(zip(("h", "c"), hidden, strict=False))


def flipped(x_BM: Tensor, n_B: Tensor) -> Tensor:
    """Reverse the first n entries of each row; padding stays in place."""
    j_M, n_B1 = torch.arange(x_BM.shape[1], device=x_BM.device), n_B.to(x_BM.device)[:, None]
    at_BM = torch.where(j_M < n_B1, n_B1 - 1 - j_M, j_M)
    return x_BM[torch.arange(len(x_BM), device=x_BM.device)[:, None], at_BM]


def _layers(cell: str, inputs: int, width: int, depth: int, dropout: float, both: bool) -> nn.RNNBase:
    between = dropout if depth > 1 else 0.0  # PyTorch warns about dropout between layers if there is only one
    layers = CELLS[cell](inputs, width, depth, batch_first=True, dropout=between, bidirectional=both)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in layers.named_parameters():
            if name.startswith("weight_hh"):
                for gate in parameter.chunk(GATES[cell]):
                    nn.init.orthogonal_(gate)
            if name.startswith("bias"):
                parameter.zero_()
                if cell == "lstm" and "_ih_" in name:  # PyTorch adds two biases, so one of them
                    parameter[width : 2 * width] = 1  # forget gates start open
    return layers

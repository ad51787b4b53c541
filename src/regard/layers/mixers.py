r"""Mixers without attention: token mixing that does not depend on content.

| mixer | what it does along the sequence | `weights` |
|---|---|---|
| `FourierMixer` (FNet) | the real part of a Fourier transform over tokens and features | two matrices: cos, −sin |
| `TokenMixer` (MLP-Mixer) | two linear layers with an activation between them, the same for all features | none: not a single matrix |
| `GatedMixer` (gMLP) | a learned matrix that computes a gate for the features | that matrix |
| `GatedMixer(…, attention=MultiHead(…))` (aMLP) | the same, with a small attention added to the gate | that matrix; the attention has its own |

Each is a mixer for `Block`: `mixer(x_BLD, pattern) → x_BLD`. The blocks of the papers are

    Block(width, FourierMixer(), FeedForward(width, hidden, gelu), placement="post")                             FNet
    Block(width, TokenMixer(length, hidden), FeedForward(width, wide, gelu))                                      MLP-Mixer
    Block(width, GatedMixer(width, hidden, length), None)                                                         gMLP

Paper: Lee-Thorp et al. 2021, "FNet", arXiv:2105.03824; Tolstikhin et al. 2021, "MLP-Mixer", arXiv:2105.01601; Liu et al. 2021,
       "Pay attention to MLPs", arXiv:2105.08050.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import State
from ..errors import CaptureNotSupported, PatternNotSupported, ShapeError, StateNotSupported
from ..kernels import float32_or_wider
from ..patterns import Full, Pattern, full
from .activations import Activation, gelu
from .multihead import MultiHead
from .positionwise import FeedForward, LayerNorm, Norm


class Mixer(nn.Module):
    """The base of mixers whose weights do not depend on the tokens; `capture` shows them."""

    name: str

    def weights(self, length: int, pattern: Pattern = full) -> Tensor:
        """The matrices that mix `length` tokens, weights_BHLM, with B = 1 unless the pattern differs between rows. The same for every input."""
        raise CaptureNotSupported(f"{type(self).__name__} does not mix tokens by a single matrix; FourierMixer and GatedMixer do")

    def start(self, batch: int, pattern: Pattern = full) -> State:
        raise self._no_state()

    def _no_state(self) -> StateNotSupported:
        return StateNotSupported(f"{type(self).__name__} cannot decode step by step: it mixes whole sequences; MultiHead can")

    def _check(self, x_BLD: Tensor, state: State | None) -> None:
        if x_BLD.dim() != 3:
            raise ShapeError(f"{type(self).__name__}: x_BLD must be (batch, length, width), got {tuple(x_BLD.shape)}")
        if state is not None:
            raise self._no_state()

    def _only_full(self, pattern: Pattern) -> None:
        if not isinstance(pattern, Full):
            raise PatternNotSupported(f"{type(self).__name__} supports `full` only, not `{pattern}`; MultiHead takes any pattern")


class FourierMixer(Mixer):
    r"""FNet: the real part of the Fourier transform over tokens and features; no parameters.

    $$y = \mathrm{Re}\big(F_L\, x\, F_D\big) = C_L\, (x\, C_D) - S_L\, (x\, S_D) \qquad C_{mn} = \cos\tfrac{2\pi mn}{N},\; S_{mn} = \sin\tfrac{2\pi mn}{N}$$

    Cost:    time O(L·D·log(L·D)), memory O(L·D); no parameters.
    Use it:  as the cheapest token mixing, in encoders of fixed length.
    Avoid it: where tokens must be found by content; where lengths vary: padding is mixed into everything.
    Limits:  `full` only: there is no causal form, and padding counts as tokens. float32 at least, whatever x is.
    Weights: two heads, cos and −sin, over the values x C_D and x S_D; their outputs are added.

    Shape: x_BLD → out_BLD.
    """

    # x is real, so half of the features determine the rest. The map is symmetric, so the backward pass equals the forward pass: PyTorch's
    # own would do a complex transform of full size. Matmuls with C and S were 3 to 40 times slower on a CPU (64 to 4,096 tokens).

    name = "fourier"

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        self._check(x_BLD, state)
        self._only_full(pattern)
        return _Fourier.apply(float32_or_wider(x_BLD)).to(x_BLD.dtype)  # type: ignore[no-untyped-call]

    def weights(self, length: int, pattern: Pattern = full) -> Tensor:
        self._only_full(pattern)
        at = torch.arange(length)
        turns_LM = (at[:, None] * at % max(length, 1)).double() / max(length, 1)  # reduced first: large angles lose precision
        angle_LM = 2 * math.pi * turns_LM
        return torch.stack([angle_LM.cos(), -angle_LM.sin()])[None]


class _Fourier(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BLD: Tensor) -> Tensor:
        if not x_BLD.numel():
            return x_BLD.clone()
        half, out_BLD = torch.fft.rfft2(x_BLD, dim=(1, 2)).real, torch.empty_like(x_BLD)
        N = half.shape[2]
        out_BLD[..., :N] = half
        rest = half[..., 1 : x_BLD.shape[2] - N + 1].flip(1, 2)  # feature D − d at token −l is feature d at token l
        out_BLD[:, 0, N:], out_BLD[:, 1:, N:] = rest[:, -1], rest[:, :-1]
        return out_BLD

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        return _Fourier.apply(d_out)  # type: ignore[no-untyped-call]


class TokenMixer(Mixer):
    r"""MLP-Mixer's token mixing: a feed-forward layer along the tokens, the same for every feature.

    $$y = \big(W_2\, \mathrm{gelu}(W_1 x + b_1) + b_2\big) \qquad W_1 \in \mathbb{R}^{F \times L},\; W_2 \in \mathbb{R}^{L \times F}$$

    Cost:    time O(L·F·D), memory O(F·D).
    Use it:  for images split into a fixed number of patches.
    Avoid it: for text: it is neither causal nor aware of padding, and has a fixed length.
    Limits:  x must have exactly `length` tokens; `full` only. No `weights`: there is an activation between the two matrices.

    Args:
        length: number of tokens L.
        hidden: number F of hidden units along the tokens.
        activation: activation between the two matrices.
        dropout: dropout rate of the hidden units.

    Shape: x_BLD → out_BLD.
    """

    name = "token_mlp"

    def __init__(self, length: int, hidden: int, activation: Activation = gelu, *, dropout: float = 0.0):
        super().__init__()
        self.length = length
        self.mix = FeedForward(length, hidden, activation, dropout=dropout)

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        self._check(x_BLD, state)
        self._only_full(pattern)
        if x_BLD.shape[1] != self.length:
            raise ShapeError(f"TokenMixer(length={self.length}) was given x_BLD {tuple(x_BLD.shape)}; expected {self.length} tokens")
        return self.mix(x_BLD.transpose(1, 2)).transpose(1, 2)


class GatedMixer(Mixer):
    r"""gMLP: one half of the features, mixed along the sequence by a learned matrix, gates the other half.

    $$y = \big(z_1 \odot (W_s\, \mathrm{norm}(z_2) + b_s + a)\big) W_{out} \qquad [z_1; z_2] = \mathrm{gelu}(x W_{in}) \qquad
      W_s \in \mathbb{R}^{L \times L},\; b_s \in \mathbb{R}^{L}$$

    W_s is initialised near 0 and b_s at 1, so that the block starts as a feed-forward layer. With `attention`, a MultiHead from `width`
    to hidden / 2, its output a is added to the gate: aMLP; the paper's has one head of size 64:
    `MultiHead(width, 1, head_dim=64, out_width=hidden // 2)`.

    Cost:    time O(L²·F + L·D·F), memory O(L·F); L² parameters.
    Use it:  where the length is fixed and positions matter more than content.
    Avoid it: where tokens must be found by content (aMLP's attention is for that).
    Limits:  at most `length` tokens: shorter sequences use the first rows and columns. Patterns must be the same for all heads; W_s is
             masked by them, so `causal` and `lengths` hold strictly.

    Args:
        width: model width D.
        hidden: number F of features between the two projections, both halves together.
        length: maximum number of tokens.
        attention: MultiHead from `width` to hidden / 2 whose output is added to the gate (aMLP); None: gMLP.
        activation: activation after the first projection.
        norm: factory of the norm of the gate, `width -> module`.

    Shape: x_BLD → out_BLD.
    """

    name = "spatial_gate"

    def __init__(
        self,
        width: int,
        hidden: int,
        length: int,
        *,
        attention: MultiHead | None = None,
        activation: Activation = gelu,
        norm: Norm = LayerNorm,
    ):
        super().__init__()
        if hidden % 2:
            raise ShapeError(f"GatedMixer: hidden={hidden}; expected an even number: choose {hidden - 1} or {hidden + 1}")
        self.length, self.activation, self.attention = length, activation, attention
        self.up, self.down, self.norm = nn.Linear(width, hidden), nn.Linear(hidden // 2, width), norm(hidden // 2)
        self.weight_LM = nn.Parameter(torch.empty(length, length).uniform_(-1e-3 / max(length, 1), 1e-3 / max(length, 1)))
        self.bias_L = nn.Parameter(torch.ones(length))

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        self._check(x_BLD, state)
        L = x_BLD.shape[1]
        through_BLF, gate_BLF = self.activation(self.up(x_BLD)).chunk(2, -1)
        mix_BLM = self.weights(L, pattern)[:, 0].to(gate_BLF.dtype)
        gate_BLF = torch.matmul(mix_BLM, self.norm(gate_BLF)) + self.bias_L[:L, None]
        if self.attention is not None:
            gate_BLF = gate_BLF + self.attention(x_BLD, pattern=pattern)
        return self.down(through_BLF * gate_BLF)

    def weights(self, length: int, pattern: Pattern = full) -> Tensor:
        if length > self.length:
            raise ShapeError(f"GatedMixer(length={self.length}) was given {length} tokens; expected at most {self.length}")
        if pattern.heads != 1:
            raise PatternNotSupported(
                f"`{pattern}` differs between {pattern.heads} heads, and GatedMixer has one matrix; MultiHead takes it"
            )
        weight_BHLM = self.weight_LM[None, None, :length, :length]
        return weight_BHLM if isinstance(pattern, Full) else weight_BHLM * pattern.mask(length, length, weight_BHLM.device)

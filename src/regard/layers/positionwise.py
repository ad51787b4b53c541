r"""Layers that act on each position by itself: embeddings, norms, feed-forward layers and dropout.

$$x_t = \mathrm{dropout}\big(\sqrt{D}\,E[\mathrm{id}_t] + PE_t\big)$$

The factor √D belongs to the 2017 transformer, whose embeddings have entries of size 1/√D so that they also serve as the output
projection; GPT and BERT leave it out.

$$\mathrm{LayerNorm}(x) = g\,\frac{x - \bar x}{\sqrt{\mathrm{var}(x) + ε}} + b \qquad
  \mathrm{RMSNorm}(x) = g\,\frac{x}{\sqrt{\overline{x^2} + ε}}$$

Layers take a norm as a factory `width -> module`: `LayerNorm`, `RMSNorm`, `partial(LayerNorm, eps=1e-12)`, `NoNorm`.

$$\mathrm{FeedForward}(x) = W_2\, f(W_1 x + b_1) + b_2 \qquad
  \text{gated: } W_2\,\big(g(W_1 x + b_1) \odot (W_1' x + b_1')\big) + b_2$$

Paper: Vaswani et al. 2017, arXiv:1706.03762, sections 3.3 and 3.4; Press & Wolf 2016 (tied output), arXiv:1608.05859. Norms: Ba, Kiros &
       Hinton 2016, arXiv:1607.06450; Zhang & Sennrich 2019, "Root mean square layer normalization", arXiv:1910.07467.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import LayerNorm as LayerNorm  # nothing to add to PyTorch's own

from ..attention import positions
from ..errors import DtypeError, ShapeError
from ..kernels import apply_linear, dropout, float32_or_wider
from .activations import Activation, Gated, relu
from .packing import Packing
from .positions import Offset, Position

Norm = Callable[[int], nn.Module]


class Dropout(nn.Module):
    """Each element is zeroed with probability `p` in training, and the others scaled up; nothing happens in evaluation.

    Args:
        p: probability of zeroing an element.

    Shape: x → out, elementwise.
    """

    def __init__(self, p: float = 0.0):
        super().__init__()
        if not 0 <= p <= 1:
            raise ShapeError(f"dropout={p}: expected a probability, from 0 to 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class RMSNorm(nn.Module):
    """Features divided by their root mean square, times a learned gain: no mean, no shift.

    Computed in float32 at least, whatever the dtype of x: squares of half-precision numbers overflow. The gain is applied
    after the cast back to the dtype of x, as the published checkpoints expect.

    Args:
        width: number of features D.
        eps: added to the mean square.

    Shape: x (…, D) → out (…, D).
    """

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        precise = float32_or_wider(x)
        precise = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * precise.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class NoNorm(nn.Identity):
    """The identity: for ablations, and for models without norms.

    Args:
        width: not used; norms are made by `norm(width)`.

    Shape: x → x.
    """

    def __init__(self, width: int):
        super().__init__()


class Scale(nn.Module):
    """Multiplies by a number.

    Args:
        factor: the number.

    Shape: x → out, elementwise.
    """

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor}"


class Embedding(nn.Module):
    """One vector per token, plus its position. The row of `padding`, if given, is zero and gets no gradient.

    Args:
        vocab_size: number of tokens N.
        width: model width D.
        position: absolute positions to add, such as `Learned`; None: none.
        scaled: multiply token vectors by √D.
        dropout: dropout rate of the sum.
        padding: id of the padding token; None: none.

    Shape: ids_BL → x_BLD; with `packing`, x_1TD.
    """

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
        """Look up the vectors of tokens, and add their positions.

        Args:
            ids_BL: token ids.
            at: position of the first token (a state's), or of every token, (L,) or (B, L).
            packing: positions of the real tokens; the result is then x_1TD.
        """
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


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, at each position.

    With a gated activation `up` holds both matrices, the gate's first: `up.weight = cat(gate, value)`. Gating costs a third
    matrix; hidden · 2/3 keeps the number of parameters.

    Args:
        width: model width D.
        hidden: number F of hidden features.
        activation: activation between the layers; gated ones, such as `swiglu`, use two matrices.
        bias: give both layers a bias.
        dropout: dropout rate of the hidden features.

    Shape: x_BLD → out_BLD.
    """

    def __init__(self, width: int, hidden: int, activation: Activation = relu, *, bias: bool = True, dropout: float = 0.0):
        super().__init__()
        self.width, self.activation = width, activation
        self.up = nn.Linear(width, 2 * hidden if isinstance(activation, Gated) else hidden, bias)
        self.down = nn.Linear(hidden, width, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        if x_BLD.shape[-1] != self.width:
            raise ShapeError(f"FeedForward of width {self.width} was given x of shape {tuple(x_BLD.shape)}; the last must be {self.width}")
        return apply_linear(self.down, self.dropout(self.activation(apply_linear(self.up, x_BLD))))

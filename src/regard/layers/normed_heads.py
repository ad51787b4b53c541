r"""Multi-head attention with a norm per head before the output projection: gated heads and differential heads.

$$\mathrm{GatedHeads}(x) = W_o\,\big(f(W_g\, x) \odot [N(o_1); \dots; N(o_H)]\big) \qquad
  \mathrm{DifferentialHeads}(x) = W_o\,(1 - \lambda_0)\,[\mathrm{RMS}(o_1); \dots; \mathrm{RMS}(o_H)] + b_o$$

A recurrent state without a denominator grows and shrinks with what was written to it. The norm removes that scale from each head;
the gate lets each token select features of the result.

The difference of two attention maps is small where both agree, by an amount that varies between heads; the norm gives all heads the same
scale, and 1 − λ₀ the gradients of a layer without the difference. A differential head is as wide as two of the heads it replaces.

Paper: Sun et al. 2023 (RetNet), arXiv:2307.08621, eq. 8; Yang et al. 2023 (GLA), arXiv:2312.06635, section 4.4; Ye et al. 2024,
       "Differential transformer", arXiv:2410.05258, section 2.1, eq. 3.
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import DifferentialAttention, State
from ..patterns import Pattern, causal, full
from .activations import Activation, silu
from .multihead import CrossInput, MultiHead
from .positions import Position
from .positionwise import Norm, RMSNorm


class GatedHeads(nn.Module):
    """A MultiHead with a norm per head and a gate computed from x, before the output projection; called like a MultiHead.

    The norm, a factory `width -> module`, acts on the features of one head, and all heads share its gain. Mamba-2's norm after the
    gate, over all heads at once, is a different layer.

    Args:
        heads: MultiHead whose head outputs are normed and gated.
        norm: factory of the norm of one head's features, `width -> module`.
        activation: activation of the gate.

    Shape: x_BLD → out_BLD, as `MultiHead`.
    """

    def __init__(self, heads: MultiHead, norm: Norm = RMSNorm, activation: Activation = silu):
        super().__init__()
        features = heads.out.in_features
        self.heads, self.activation = heads, activation
        self.norm = norm(features // heads.heads)
        self.gate = nn.Linear(heads.width, features, bias=False)

    def forward(self, x_BLD: Tensor, memory: CrossInput = None, pattern: Pattern = full, state: State | None = None) -> Tensor:
        out_BLHV = self.norm(self.heads.head_outputs(x_BLD, memory, pattern, state))
        return self.heads.out(self.activation(self.gate(x_BLD)) * out_BLHV.flatten(-2))

    def start(self, batch: int, pattern: Pattern = causal) -> State:
        return self.heads.start(batch, pattern)


class DifferentialHeads(MultiHead):
    """`MultiHead` with `heads` differential heads, for layer `depth`, counted from 0. The norm has no gain: `out` absorbs it.

    Rotary positions must rotate the two maps separately: `Rotary(layout="interleaved")`; halves would pair features of both.

    Args:
        width: model width D.
        heads: number of differential heads.
        depth: index of the layer, from 0.
        kv_heads: heads of k and v, a divisor of `heads`; `heads` by default.
        bias: give the projections a bias.
        position: a scheme of `positions` that acts on q, k or scores; None: none.

    Shape: x_BLD → out_BLD, as `MultiHead`.
    """

    def __init__(
        self, width: int, heads: int, depth: int = 0, *, kv_heads: int | None = None, bias: bool = True, position: Position | None = None
    ):
        attention = DifferentialAttention(heads=heads, head_dim=width // heads, depth=depth)
        norm = partial(_ScaledRMSNorm, factor=1 - attention.initial_share)
        super().__init__(width, heads, attention, kv_heads=kv_heads, bias=bias, head_norm=norm, position=position)


class _ScaledRMSNorm(nn.Module):
    """RMS norm without a gain, times a constant."""

    def __init__(self, width: int, factor: float):
        super().__init__()
        self.width, self.factor = width, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * F.rms_norm(x, (self.width,), eps=1e-5)

r"""Heads with a norm each and an output gate: the layer around attention without a denominator.

$$\mathrm{GatedHeads}(x) = W_o\,\big(f(W_g\, x) \odot [N(o_1); \dots; N(o_H)]\big) \qquad o_h \text{ as in MultiHead}$$

A recurrent state without a denominator grows and shrinks with what was written to it. The norm removes that scale from each head;
the gate lets each token select features of the result.

Paper: Sun et al. 2023 (RetNet), arXiv:2307.08621, eq. 8; Yang et al. 2023 (GLA), arXiv:2312.06635, section 4.4.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..attention import State
from ..patterns import Pattern, causal, full
from ._states import CrossInput
from .feedforward import Activation, silu
from .multihead import MultiHead
from .norms import Norm, RMSNorm


class GatedHeads(nn.Module):
    """A MultiHead with a norm per head and a gate computed from x, before the output projection; called like a MultiHead.

    The norm, a factory `width -> module`, acts on the features of one head, and all heads share its gain. Mamba-2's norm after the
    gate, over all heads at once, is a different layer.
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

r"""Heads that are normed one by one and then gated: what surrounds attention without a denominator.

$$\mathrm{GatedHeads}(x) = W_o\,\big(f(W_g\, x) \odot [N(o_1); \dots; N(o_H)]\big) \qquad o_h \text{ as in MultiHead}$$

A state without a denominator grows and shrinks with what was written to it. The norm takes that out of each head; the gate lets
a token say which of the features found it wants.

Paper: Sun et al. 2023 (RetNet), arXiv:2307.08621, eq. 8; Yang et al. 2023 (GLA), arXiv:2312.06635, section 4.4.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..attention import State
from ..patterns import Pattern, causal, full
from ._states import Memory
from .feedforward import Activation, silu
from .multihead import MultiHead
from .norms import Norm, RMSNorm


class GatedHeads(nn.Module):
    """A MultiHead whose heads pass a norm and a gate made from x before they are joined; called as it is.

    The norm, a factory `width -> module`, sees the features of one head, and all heads share its gain. Mamba-2 norms after the gate,
    over all heads at once: that is another layer.
    """

    def __init__(self, heads: MultiHead, norm: Norm = RMSNorm, activation: Activation = silu):
        super().__init__()
        features = heads.out.in_features
        self.heads, self.activation = heads, activation
        self.norm = norm(features // heads.heads)
        self.gate = nn.Linear(heads.width, features, bias=False)

    def forward(
        self, x_BLD: Tensor, memory_BMD: Tensor | Memory | None = None, pattern: Pattern = full, state: State | None = None
    ) -> Tensor:
        found_BLHV = self.norm(self.heads.look(x_BLD, memory_BMD, pattern, state))
        return self.heads.out(self.activation(self.gate(x_BLD)) * found_BLHV.flatten(-2))  # type: ignore[no-any-return]

    def start(self, batch: int, pattern: Pattern = causal) -> State:
        return self.heads.start(batch, pattern)

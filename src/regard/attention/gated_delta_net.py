"""Gated DeltaNet: the delta rule with a decay, which corrects single memories or clears them all."""

from __future__ import annotations

from torch import Tensor

from ..bounds import Heads
from ._base import Paper
from ._recurrent import Clock, RecurrentAttention, RecurrentFacts, Terms
from .delta_net import unit_norm


class GatedDeltaNet(RecurrentAttention):
    r"""Each token decays the whole state by one factor per head, then corrects what the state returns for its key.

    $$S_t = \gamma_t S_{t-1} + \beta_t\, \hat k_t \big(v_t - \gamma_t S_{t-1}^\top \hat k_t\big)^\top, \qquad o_t = S_t^\top \hat q_t$$
    $$\beta_t = \sigma(b_t), \qquad \gamma_t = \exp\big(-a_h\, \mathrm{softplus}(x_t + c_h)\big), \qquad \hat x = x / \lVert x \rVert$$

    b_t and x_t are the gates, in this order; a_h > 0 and c_h are learned.

    Cost:    time O(L·C·(C + K + V) + L·K·V) in chunks of C = 64; memory O(L·(C + K)). A decoding step costs O(K·V) at
             any length. Computing the weights takes a triangular solve over all keys, O(M²·L): for inspection only.
    Use it:  where a recurrent state must serve as long-term memory: it overwrites like `DeltaNet` and clears like Mamba-2.
    Avoid it: where all of a long past must be recalled verbatim: the state has K rows. Models combine it with exact attention.
    Limits:  `causal` and key masks (`lengths`, `since`) only; no bias; weights may be negative and do not sum to
             one, so outputs need a norm per head: `layers.GatedHeads`. The number of heads is fixed at construction.
    Args:
        heads: number of heads.
    Shape:   q_BLHK, k_BMHK, v_BMHV, gates_BMHE → out_BLHV; weights_BHLM.
    Paper:   Yang, Kautz & Hatamizadeh 2024, "Gated delta networks", arXiv:2412.06464, section 3; used in Qwen3-Next.
    We differ: as `DeltaNet`: no short convolutions and SiLU before it, no 1/√K. Qwen3-Next lets value heads share q
             and k; here heads have their own, or share k and v.
    """

    facts = RecurrentFacts(
        name="gated_delta",
        paper=Paper("Gated delta networks: improving Mamba2 with delta rule", 2024, "arXiv:2412.06464"),
        formula="S ← γ S + β k (v − γ Sᵀk)ᵀ,  Sᵀq",
        time="L·(C·(C + K + V) + K·V)",
        memory="L·(C + K)",
    )
    gates = 2

    def __init__(self, *, heads: Heads):
        super().__init__()
        self.heads = heads
        self.clock = Clock(heads)

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, gates_BMHE: Tensor) -> Terms:
        b_BMH, x_BMH = gates_BMHE.unbind(-1)
        return Terms(unit_norm(q_BLHK), unit_norm(k_BMHK), self.clock(x_BMH)[1], b_BMH.sigmoid())

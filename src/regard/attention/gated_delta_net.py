"""The delta rule with a gate: correct single memories, or forget them all at once."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from ._base import Facts
from ._recurrence import PATTERNS, Clock, GatedRecurrence, Terms
from .delta_net import unit


class GatedDeltaNet(GatedRecurrence):
    r"""Each token decays the whole memory by one number a head, then corrects what its key answers.

    $$S_t = \gamma_t S_{t-1} + \beta_t\, \hat k_t \big(v_t - \gamma_t S_{t-1}^\top \hat k_t\big)^\top, \qquad o_t = S_t^\top \hat q_t$$
    $$\beta_t = \sigma(b_t), \qquad \gamma_t = \exp\big(-a_h\, \mathrm{softplus}(x_t + c_h)\big), \qquad \hat x = x / \lVert x \rVert$$

    Here b_t and x_t are the extra numbers, in this order; a_h > 0 and c_h are learned.

    Cost:    time O(L·C·(C + K + V) + L·K·V) in chunks of C = 64; memory O(L·(C + K)). A step of decoding costs O(K·V), however long
             the past. The weights cost a triangular solve over all keys, O(M²·L): for looking, not for running.
    Use it:  where a recurrent state has to serve as memory for long: it overwrites like `DeltaNet` and clears like Mamba-2.
    Avoid it: where all of a long past must be recalled word for word: the state has K rows. Models mix it with exact attention.
    Limits:  `causal`, and which keys are real (`lengths`, `since`); no bias; weights may be negative and do not sum to one. So
             outputs want a norm a head after them: `layers.GatedHeads`. Made for a number of heads, and works with it only.
    Paper:   Yang, Kautz & Hatamizadeh 2024, "Gated delta networks", arXiv:2412.06464, section 3; used in Qwen3-Next.
    We differ: as `DeltaNet`: no short convolutions and SiLU before it, no 1/√K. Qwen3-Next lets value heads share q and k; here heads
             have their own, or share k and v.
    """

    facts = Facts(
        name="gated_delta",
        year=2024,
        title="Gated delta networks: improving Mamba2 with delta rule",
        paper="arXiv:2412.06464",
        formula="S ← γ S + β k (v − γ Sᵀk)ᵀ,  Sᵀq",
        time="L·(C·(C + K + V) + K·V)",
        memory="L·(C + K)",
        patterns=PATTERNS,
        normalised=False,
        positional=True,
        bias=False,
    )
    extra = 2

    def __init__(self, heads: int):
        super().__init__()
        self.clock = Clock(heads)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads)

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor) -> Terms:
        b_BMH, x_BMH = extra_BMHE.unbind(-1)
        return Terms(unit(q_BLHK), unit(k_BMHK), self.clock(x_BMH)[1], b_BMH.sigmoid())

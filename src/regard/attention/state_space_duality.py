"""The core of Mamba-2: a state-space model read as attention with a mask that decays."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from ._base import Facts
from ._recurrence import PATTERNS, Clock, GatedRecurrence, Terms


class StateSpaceDuality(GatedRecurrence):
    r"""Each token says how much time passes at it: long steps forget the past and write much, short ones leave it alone.

    $$o_i = \sum_{j \le i} \exp\Big(-a_h \sum_{t=j+1}^{i} \Delta_t\Big)\, \Delta_j\, (q_i^\top k_j)\, v_j, \qquad
      \Delta_t = \mathrm{softplus}(x_t + b_h)$$

    Here x_t is the extra number; a_h > 0 and b_h are learned. In the paper's letters q is C, k is B, v is X, and log γ = −aΔ is ΔA.

    Cost:    time O(L·(C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A step of decoding costs O(K·V), however long the past.
    Use it:  for long sequences, where one number a head and token is enough to say what may be forgotten.
    Avoid it: for exact recall of many things: they add up in one K × V matrix.
    Limits:  `causal`, and which keys are real (`lengths`, `since`); no bias; weights may be negative and do not sum to one. So
             outputs want a norm a head after them: `layers.GatedHeads`. Made for a number of heads, and works with it only.
    Paper:   Dao & Gu 2024, "Transformers are SSMs", arXiv:2405.21060, sections 5 and 6.
    We differ: this is the recurrence alone. Of Mamba-2's block there are no short convolution over q, k and v, no skip D·v beside
             the sum, and no limits to Δ. There heads share q and k (one group for many values); here heads have their own, or
             share k and v.
    """

    facts = Facts(
        name="state_space_duality",
        year=2024,
        title="Transformers are SSMs: generalized models and efficient algorithms through structured state space duality",
        paper="arXiv:2405.21060",
        formula="exp(−a Σ Δ) Δ q·k v",
        time="L·(C + K)·V",
        memory="L·(C + K)",
        patterns=PATTERNS,
        normalised=False,
        positional=True,
        bias=False,
    )
    extra = 1

    def __init__(self, heads: int):
        super().__init__()
        self.clock = Clock(heads)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads)

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor) -> Terms:
        step_BMH, log_decay_BMH = self.clock(extra_BMHE[..., 0])
        return Terms(q_BLHK, k_BMHK * step_BMH.unsqueeze(-1), log_decay_BMH)

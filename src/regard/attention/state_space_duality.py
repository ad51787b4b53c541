"""State-space duality, the core of Mamba-2: a state-space model as attention with a decaying mask."""

from __future__ import annotations

from torch import Tensor

from ..bounds import Heads
from ._base import Paper
from ._recurrent import Clock, RecurrentAttention, RecurrentFacts, Terms


class StateSpaceDuality(RecurrentAttention):
    r"""Each token sets its time step: long steps forget the past and write much, short ones leave it alone.

    $$o_i = \sum_{j \le i} \exp\Big(-a_h \sum_{t=j+1}^{i} \Delta_t\Big)\, \Delta_j\, (q_i^\top k_j)\, v_j, \qquad
      \Delta_t = \mathrm{softplus}(x_t + b_h)$$

    x_t is the gate; a_h > 0 and b_h are learned. In the paper's notation q is C, k is B, v is X, and log γ = −aΔ is ΔA.

    Cost:    time O(L·(C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A decoding step costs O(K·V) at any length.
    Use it:  for long sequences, where one number per head and token is enough to control forgetting.
    Avoid it: for exact recall of many items: they add up in one K × V matrix.
    Limits:  `causal` and key masks (`lengths`, `since`) only; no bias; weights may be negative and do not sum to
             one, so outputs need a norm per head: `layers.GatedHeads`. The number of heads is fixed at construction.
    Args:
        heads: number of heads.
    Shape:   q_BLHK, k_BMHK, v_BMHV, gates_BMHE → out_BLHV; weights_BHLM.
    Paper:   Dao & Gu 2024, "Transformers are SSMs", arXiv:2405.21060, sections 5 and 6.
    We differ: this is the recurrence alone, without the Mamba-2 block's short convolution over q, k and v, skip connection D·v
             and limits on Δ. There heads share q and k (one group for many values); here heads have their own, or share k and v.
    """

    facts = RecurrentFacts(
        name="state_space_duality",
        paper=Paper(
            "Transformers are SSMs: generalized models and efficient algorithms through structured state space duality",
            2024,
            "arXiv:2405.21060",
        ),
        formula="exp(−a Σ Δ) Δ q·k v",
        time="L·(C + K)·V",
        memory="L·(C + K)",
    )
    gates = 1

    def __init__(self, *, heads: Heads):
        super().__init__()
        self.heads = heads
        self.clock = Clock(heads)

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, gates_BMHE: Tensor) -> Terms:
        step_BMH, log_decay_BMH = self.clock(gates_BMHE[..., 0])
        return Terms(q_BLHK, k_BMHK * step_BMH.unsqueeze(-1), log_decay_BMH)

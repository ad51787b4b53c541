"""DeltaNet: each token writes the difference between its value and what the memory already returns for its key."""

from __future__ import annotations

import torch
from torch import Tensor

from ._base import Paper
from ._recurrent import RecurrentAttention, RecurrentFacts, Terms


class DeltaNet(RecurrentAttention):
    r"""The value stored under a key is overwritten, not added to, by a fraction β that each token sets.

    $$S_t = S_{t-1} + \beta_t\, \hat k_t \big(v_t - S_{t-1}^\top \hat k_t\big)^\top, \qquad o_t = S_t^\top \hat q_t, \qquad
      \beta_t = \sigma(b_t), \quad \hat x = x / \lVert x \rVert$$

    b_t is the gate. As attention, with lower triangles of dot products (strictly lower in the second):

    $$A = \mathrm{tril}(\hat Q \hat K^\top)\, \big(I + \beta \circ \mathrm{tril}_{-1}(\hat K \hat K^\top)\big)^{-1} \beta$$

    Cost:    time O(L·C·(C + K + V) + L·K·V) in chunks of C = 64; memory O(L·(C + K)). A decoding step costs O(K·V) at
             any length. Computing the weights takes a triangular solve over all keys, O(M²·L): for inspection only.
    Use it:  for recall of changing facts: the last value written under a key wins, and up to K keys do not interfere.
    Avoid it: where averages are wanted, or where whole stretches should be forgotten at once: `GatedDeltaNet`.
    Limits:  `causal` and key masks (`lengths`, `since`) only; no bias; weights may be negative and do not sum to
             one, so outputs need a norm per head: `layers.GatedHeads`.
    Shape:   q_BLHK, k_BMHK, v_BMHV, gates_BMHE → out_BLHV; weights_BHLM.
    Paper:   Yang et al. 2024, "Parallelizing linear transformers with the delta rule over sequence length",
             arXiv:2406.06484, section 3; the rule is from Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174.
    We differ: the short convolutions and SiLU on q, k and v are layers before it. Public code multiplies by 1/√K,
             which the norm per head undoes; here a query equal to a key reads its value with weight one.
    """

    facts = RecurrentFacts(
        name="delta",
        paper=Paper("Parallelizing linear transformers with the delta rule over sequence length", 2024, "arXiv:2406.06484"),
        formula="S ← S + β k (v − Sᵀk)ᵀ,  Sᵀq",
        time="L·(C·(C + K + V) + K·V)",
        memory="L·(C + K)",
    )
    gates = 1

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, gates_BMHE: Tensor) -> Terms:
        return Terms(unit_norm(q_BLHK), unit_norm(k_BMHK), beta_BMH=gates_BMHE[..., 0].sigmoid())


def unit_norm(x: Tensor) -> Tensor:
    """x scaled to unit norm, except near zero, where the gradient must stay finite. The constant is that of the public code."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

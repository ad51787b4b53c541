"""A memory that corrects itself: a token writes the difference between its value and what its key already answers."""

from __future__ import annotations

import torch
from torch import Tensor

from ._base import Facts
from ._recurrence import PATTERNS, GatedRecurrence, Terms


class DeltaNet(GatedRecurrence):
    r"""What is stored under a key is overwritten, not added to, as far as the token asks for it.

    $$S_t = S_{t-1} + \beta_t\, \hat k_t \big(v_t - S_{t-1}^\top \hat k_t\big)^\top, \qquad o_t = S_t^\top \hat q_t, \qquad
      \beta_t = \sigma(b_t), \quad \hat x = x / \lVert x \rVert$$

    Here b_t is the extra number. As attention, with the lower triangles of products (below the diagonal in the second):

    $$A = \mathrm{tril}(\hat Q \hat K^\top)\, \big(I + \beta \circ \mathrm{tril}_{-1}(\hat K \hat K^\top)\big)^{-1} \beta$$

    Cost:    time O(L·C·(C + K + V) + L·K·V) in chunks of C = 64; memory O(L·(C + K)). A step of decoding costs O(K·V), however long
             the past. The weights cost a triangular solve over all keys, O(M²·L): for looking, not for running.
    Use it:  for recall where things change: the last value of a key wins, and up to K keys do not disturb each other.
    Avoid it: where averages are wanted, or where whole stretches should be forgotten at once: `GatedDeltaNet`.
    Limits:  `causal`, and which keys are real (`lengths`, `since`); no bias; weights may be negative and do not sum to one. So
             outputs want a norm a head after them: `layers.GatedHeads`.
    Paper:   Yang et al. 2024, "Parallelizing linear transformers with the delta rule over sequence length", arXiv:2406.06484,
             section 3; the rule is of Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174.
    We differ: the short convolutions and SiLU on q, k and v are layers before it. Public code multiplies by 1/√K, which a norm a
             head undoes; here a query that equals a key gets its value with weight one.
    """

    facts = Facts(
        name="delta",
        year=2024,
        title="Parallelizing linear transformers with the delta rule over sequence length",
        paper="arXiv:2406.06484",
        formula="S ← S + β k (v − Sᵀk)ᵀ,  Sᵀq",
        time="L·(C·(C + K + V) + K·V)",
        memory="L·(C + K)",
        patterns=PATTERNS,
        normalised=False,
        positional=True,
        bias=False,
    )
    extra = 1

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor) -> Terms:
        return Terms(unit(q_BLHK), unit(k_BMHK), beta_BMH=extra_BMHE[..., 0].sigmoid())


def unit(x: Tensor) -> Tensor:
    """Of length one, but for what is nearly zero: there the gradient must stay finite. The constant is of the public code."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

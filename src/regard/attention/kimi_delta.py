"""Kimi delta attention: the delta rule with a decay per feature, which forgets parts of every memory at their own rates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..bounds import Heads, Size
from ._base import Paper
from ._recurrent import RecurrentAttention, RecurrentFacts, Terms, initial_log_rates, initial_step_biases
from .delta_net import unit_norm


class KimiDeltaAttention(RecurrentAttention):
    r"""Each token decays every row of the state by a factor of its own, then corrects what the state returns for its key.

    $$S_t = \big(I - \beta_t\, \hat k_t \hat k_t^\top\big)\, \mathrm{Diag}(\alpha_t)\, S_{t-1} + \beta_t\, \hat k_t v_t^\top, \qquad
      o_t = S_t^\top \hat q_t$$
    $$\beta_t = \sigma(b_t), \qquad \alpha_t = \exp\big(-a_h\, \mathrm{softplus}(x_t + c_h)\big) \in (0, 1)^K, \qquad
      \hat x = x / \lVert x \rVert$$

    b_t and the K numbers x_t are the gates, in this order; a_h > 0, one per head, and c_h, one per feature, are learned.

    Cost:    time O(L·C·(C + K·log C + V) + L·K·V) in chunks of C = 64; memory O(L·(C + K·log C)). A decoding step costs O(K·V)
             at any length. Computing the weights takes a triangular solve over all keys, O(M²·L): for inspection only.
    Use it:  where a recurrent state must serve as long-term memory: features that decay fast hold what is near, others what stays.
    Avoid it: where all of a long past must be recalled verbatim: the state has K rows. Models combine it with exact attention.
    Limits:  `causal` and key masks (`lengths`, `since`) only; no bias; weights may be negative and do not sum to
             one, so outputs need a norm per head: `layers.GatedHeads`. Heads and their size are fixed at construction.
    Args:
        heads: number of heads H.
        head_dim: size of each head K.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV.

    Paper:   Kimi Team 2025, "Kimi Linear: an expressive, efficient attention architecture", arXiv:2510.26692, section 3.
    We differ: as `GatedDeltaNet`: no short convolutions and SiLU before it, no 1/√K. MultiHead projects x_t with a full matrix; the
             paper uses one of rank K to save parameters.
    """

    facts = RecurrentFacts(
        name="kimi_delta",
        paper=Paper("Kimi Linear: an expressive, efficient attention architecture", 2025, "arXiv:2510.26692"),
        formula="S ← α S + β k (v − (α S)ᵀk)ᵀ,  Sᵀq,  α per feature",
        time="L·(C·(C + K·log C + V) + K·V)",
        memory="L·(C + K·log C)",
    )

    def __init__(self, *, heads: Heads, head_dim: Size):
        super().__init__()
        self.heads, self.head_dim, self.gates = heads, head_dim, 1 + head_dim
        self.log_rate_H = nn.Parameter(initial_log_rates(heads))
        self.bias_HK = nn.Parameter(initial_step_biases(heads, head_dim))

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, gates_BMHE: Tensor) -> Terms:
        b_BMH, x_BMHK = gates_BMHE[..., 0], gates_BMHE[..., 1:]
        rate_H1, bias_HK = self.log_rate_H.to(x_BMHK.dtype).exp().unsqueeze(-1), self.bias_HK.to(x_BMHK.dtype)
        return Terms(unit_norm(q_BLHK), unit_norm(k_BMHK), -rate_H1 * softplus(x_BMHK + bias_HK), b_BMH.sigmoid())

    def reference(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, gates_BMHE: Tensor) -> Tensor:
        """Equation 1 of the paper as it is printed, one token at a time: `regard check` compares it with `forward`.

        Args:
            q_BLHK: queries.
            k_BMHK: keys, as many as queries.
            v_BMHV: values.
            gates_BMHE: b_t and x_t of each token.
        """
        B, L, H, K = q_BLHK.shape
        S_BHKV, outs = q_BLHK.new_zeros(B, H, K, v_BMHV.shape[-1]), []
        for t in range(L):
            q_BHK, k_BHK = (x[:, t] / (x[:, t].square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q_BLHK, k_BMHK))
            beta_BH11 = 1 / (1 + torch.exp(-gates_BMHE[:, t, :, :1, None]))
            step_BHK = torch.log1p(torch.exp(gates_BMHE[:, t, :, 1:] + self.bias_HK))
            alpha_BHKK = torch.diag_embed(torch.exp(-torch.exp(self.log_rate_H)[:, None] * step_BHK))
            kk_BHKK, kv_BHKV = k_BHK[..., None] * k_BHK[..., None, :], k_BHK[..., None] * v_BMHV[:, t, :, None]
            S_BHKV = (
                torch.eye(K, dtype=S_BHKV.dtype, device=S_BHKV.device) - beta_BH11 * kk_BHKK
            ) @ alpha_BHKK @ S_BHKV + beta_BH11 * kv_BHKV
            outs.append((S_BHKV.mT @ q_BHK[..., None]).squeeze(-1))
        return torch.stack(outs, 1)

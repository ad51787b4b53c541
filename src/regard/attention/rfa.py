"""Random feature attention: sines and cosines of random projections estimate a Gaussian kernel; plain and gated."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize, pad

from ..bounds import Heads, Seed, Size
from ._base import Call, Facts, Paper
from ._feature_map import FeatureMapAttention, FeatureMapFacts, recurrent
from ._recurrent import RecurrentFacts
from .helpers import float32_or_wider, hide_keys, no_autocast, seeded_generator, share_heads

LEAST = 1e-2  # lower bound of the estimated denominator: sines and cosines may estimate a sum of positive terms as zero or less


class RandomFeatureAttention(FeatureMapAttention):
    r"""The Gaussian kernel of unit-norm queries and keys, estimated with random Fourier features.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\max\big(\sum_j \phi(q_i)^\top \phi(k_j),\; 10^{-2}\big)}, \qquad
      \phi(x) = \tfrac{1}{\sqrt{F}} \big[\sin(w_1^\top \hat x), \dots, \sin(w_F^\top \hat x), \cos(w_1^\top \hat x), \dots, \cos(w_F^\top \hat x)\big]$$

    with x̂ = x/‖x‖ and w = σ ∘ w̃, w̃ drawn once from a standard normal, σ learned. φ(q)·φ(k) has mean
    exp(−‖σ∘(q̂ − k̂)‖²/2), which for unit vectors and one σ is exp(σ² q̂·k̂) up to a constant.

    Cost:    time O((L + M)·F·(K + V)), causal O(L·(C + F)·V) in chunks of C = 64; memory O(L·(C + F)). A step costs O(F·V).
    Use it:  where softmax attention over unit vectors would do, and sequences are long or decoding must be fast.
    Avoid it: for sharp attention: a large σ needs many features, and single weights may turn out negative.
    Limits:  no bias: there are no scores. Heads and head size are fixed at construction. Rows sum to one only where the estimated
             denominator exceeds 10⁻², to which it is clamped, as in the authors' code. Patterns as for LinearAttention.
    Args:
        head_dim: size K of each head.
        heads: number of heads.
        num_features: random vectors F; there are as many sines and as many cosines.
        seed: seed of the random vectors; None: PyTorch's global generator.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Peng et al. 2021, "Random feature attention", arXiv:2103.02143, eq. 4–6. Features: Rahimi & Recht 2007.
    We differ: the authors draw from a pool of 200 sets of w̃ at every training step; here w̃ is fixed until `redraw(seed)`.
    """

    facts: ClassVar[Facts] = FeatureMapFacts(
        name="rfa",
        paper=Paper("Random feature attention", 2021, "arXiv:2103.02143"),
        formula="φ(q)·φ(k) / Σ φ(q)·φ(k) v,  φ = [sin wx̂; cos wx̂]",
        time="(L + M)·F·V",
        memory="L·(C + F)",
        normalised=False,
    )

    def __init__(self, *, head_dim: Size, heads: Heads = 1, num_features: Size = 64, seed: Seed | None = None):
        super().__init__()
        self.heads, self.head_dim, self.num_features, self.seed = heads, head_dim, num_features, seed
        self.sigma_HK = nn.Parameter(torch.ones(heads, head_dim))
        self.w_HFK: Tensor
        self.register_buffer("w_HFK", torch.empty(heads, num_features, head_dim))
        self.redraw(seed)

    def redraw(self, seed: int | None = None) -> None:
        """Draw new features, from `seed` or else from PyTorch's global generator. Existing states belong to the old ones."""
        self.w_HFK.copy_(torch.randn(self.w_HFK.shape, generator=seeded_generator(seed), device="cpu"))

    def features(self, x_BLHK: Tensor, positions_BL: Tensor) -> Tensor:
        w_HFK = self.w_HFK * self.sigma_HK.unsqueeze(1)
        phase_BLHF = torch.einsum("blhk,hfk->blhf", normalize(float32_or_wider(x_BLHK), dim=-1), float32_or_wider(w_HFK))
        return torch.cat([phase_BLHF.sin(), phase_BLHF.cos()], -1) / math.sqrt(phase_BLHF.shape[-1])

    def divide(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        return numerator / denominator.clamp(min=LEAST)


class GatedRandomFeatureAttention(RandomFeatureAttention):
    r"""Random feature attention with a forget gate per token.

    $$S_t = g_t S_{t-1} + (1 - g_t)\, \phi(k_t)\, v_t^\top, \quad z_t = g_t z_{t-1} + (1 - g_t)\, \phi(k_t), \quad
      o_t = \frac{S_t^\top \phi(q_t)}{\max\big(\phi(q_t)^\top z_t,\; 10^{-2}\big)}, \qquad g_t = \mathrm{sigmoid}(w_g^\top x_t + b_g)$$

    Cost:    as RandomFeatureAttention, causal; one more number per token and head.
    Use it:  for language models, where recent tokens matter more and old topics should fade.
    Avoid it: where distant content must be kept verbatim: what is forgotten is gone.
    Limits:  `causal` only, alone or with `lengths` or `since`. It takes one gate per token and head, the logit of g, which
             `MultiHead` projects from x. Gates near one make the first denominators small, and they are clamped to 10⁻².
    Args:
        head_dim: size K of each head.
        heads: number of heads.
        num_features: random vectors F; there are as many sines and as many cosines.
        seed: seed of the random vectors; None: PyTorch's global generator.
    Shape:   q_BLHK, k_BMHK, v_BMHV, gates_BMHE → out_BLHV; weights_BHLM.
    Paper:   Peng et al. 2021, "Random feature attention", arXiv:2103.02143, eq. 7 (RFA-Gate).
    We differ: as RandomFeatureAttention. Masked keys leave the past as it is, g = 1.
    """

    facts = RecurrentFacts(
        name="rfa_gate",
        paper=Paper("Random feature attention", 2021, "arXiv:2103.02143"),
        formula="S ← g S + (1 − g) φ(k) vᵀ,  Sᵀφ(q) / z·φ(q)",
        time="L·F·V",
        memory="L·(C + F)",
    )

    gates = 1

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        k_BMHF, log_g_BMH = self._gated_keys(k_BMHK, call, q_BLHK.shape[2])
        products_BHLM = torch.einsum("blhf,bmhf->bhlm", self.features(q_BLHK, call.query_positions()), k_BMHF)
        run_BHM = log_g_BMH.cumsum(1).transpose(1, 2)
        run_BHL = pad(run_BHM, (1, 0))[..., call.query_index().clamp(min=-1) + 1]
        kept_BHLM = (run_BHL.unsqueeze(-1) - run_BHM.unsqueeze(-2)).masked_fill(~call.mask(), -torch.inf).exp()
        products_BHLM = products_BHLM * kept_BHLM
        return self.divide(products_BHLM, products_BHLM.sum(-1, keepdim=True)).to(q_BLHK.dtype)

    @no_autocast
    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        past = recurrent(call)
        k_BMHF, log_g_BMH = self._gated_keys(k_BMHK, call, q_BLHK.shape[2])
        out_BLHV, after = self.average(self.features(q_BLHK, call.query_positions()), k_BMHF, v_BMHV, True, past, log_g_BMH)
        if past is not None:
            past.move(k_BMHK, call.gates_BMHE, kv=after)
        return out_BLHV

    def _gated_keys(self, k_BMHK: Tensor, call: Call, heads: int) -> tuple[Tensor, Tensor]:
        """Features of the keys times 1 − g, and log g; both zero where a key is not allowed."""
        assert call.gates_BMHE is not None
        allowed_BM, logit_BMH1 = call.keys_allowed(), share_heads(float32_or_wider(call.gates_BMHE), heads)
        k_BMHF = self.features(share_heads(k_BMHK, heads), call.key_positions()) * torch.sigmoid(-logit_BMH1)
        return hide_keys(k_BMHF, allowed_BM), hide_keys(logsigmoid(logit_BMH1), allowed_BM).squeeze(-1)

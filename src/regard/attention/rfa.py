"""Random feature attention: sines and cosines of random projections estimate a Gaussian kernel; and its gated form."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from ..kernels import Bias
from ..patterns import Pattern, full
from ._base import Facts, pattern_rows, share_heads, unmixed
from ._kernel import PATTERNS, Kernel, generator_of, hide, keys_seen, precise
from ._state import State, running

LEAST = 1e-2  # of the estimated denominator: sines and cosines may estimate a sum of positive terms as zero or less


class RandomFeatureAttention(Kernel):
    r"""Queries and keys of length one are compared by the Gaussian of their distance, estimated from random waves.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\max\big(\sum_j \phi(q_i)^\top \phi(k_j),\; 10^{-2}\big)}, \qquad
      \phi(x) = \tfrac{1}{\sqrt{F}} \big[\sin(w_1^\top \hat x), \dots, \sin(w_F^\top \hat x), \cos(w_1^\top \hat x), \dots, \cos(w_F^\top \hat x)\big]$$

    with x̂ = x/‖x‖ and w = σ ∘ w̃, w̃ drawn once from a standard normal, σ learned. φ(q)·φ(k) has the mean
    exp(−‖σ∘(q̂ − k̂)‖²/2), which for unit vectors and one σ is exp(σ² q̂·k̂) up to a constant.

    Cost:    time O((L + M)·F·(K + V)), causal O(L·(C + F)·V) in chunks of C = 64; memory O(L·(C + F)). A step costs O(F·V).
    Use it:  where softmax attention over unit vectors would do, and sequences are long or decoding must be fast.
    Avoid it: for sharp attention: a large σ needs many features, and single weights may come out negative.
    Limits:  no bias: there are no scores. Heads and size are fixed when it is made. Rows sum to one only where the estimated
             denominator is above 10⁻²; less is taken as that, as in the authors' code. Patterns as LinearAttention's.
    Paper:   Peng et al. 2021, "Random feature attention", arXiv:2103.02143, eq. 4-6. Features: Rahimi & Recht 2007.
    We differ: the authors draw from a pool of 200 sets of w̃ at every step of training; here they stay until `redraw(seed)`.
    """

    facts = Facts(
        name="rfa",
        year=2021,
        title="Random feature attention",
        paper="arXiv:2103.02143",
        formula="φ(q)·φ(k) / Σ φ(q)·φ(k) v,  φ = [sin wx̂; cos wx̂]",
        time="(L + M)·F·V",
        memory="L·(C + F)",
        patterns=PATTERNS,
        normalised=False,
        bias=False,
    )

    def __init__(self, *, width: int, heads: int = 1, features: int = 64, seed: int | None = None):
        super().__init__()
        self.heads: int = heads
        self.width: int = width
        self.sigma_HK = nn.Parameter(torch.ones(heads, width))
        self.w_HFK: Tensor
        self.register_buffer("w_HFK", torch.empty(heads, features, width))
        self.redraw(seed)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def redraw(self, seed: int | None = None) -> None:
        """Other waves, from `seed` or else from PyTorch's generator. States that are under way belong to the old ones."""
        self.w_HFK.copy_(torch.randn(self.w_HFK.shape, generator=generator_of(seed)))

    def features(self, x_BLHK: Tensor) -> Tensor:
        w_HFK = self.w_HFK * self.sigma_HK.unsqueeze(1)
        phase_BLHF = torch.einsum("blhk,hfk->blhf", normalize(precise(x_BLHK), dim=-1), precise(w_HFK))
        return torch.cat([phase_BLHF.sin(), phase_BLHF.cos()], -1) / math.sqrt(phase_BLHF.shape[-1])

    def divide(self, over: Tensor, under: Tensor) -> Tensor:
        return over / under.clamp(min=LEAST)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, features={self.w_HFK.shape[1]}"


class GatedRandomFeatureAttention(RandomFeatureAttention):
    r"""Random feature attention that forgets: a gate a token says how much of the past stays.

    $$S_t = g_t S_{t-1} + (1 - g_t)\, \phi(k_t)\, v_t^\top, \quad z_t = g_t z_{t-1} + (1 - g_t)\, \phi(k_t), \quad
      o_t = \frac{S_t^\top \phi(q_t)}{\max\big(\phi(q_t)^\top z_t,\; 10^{-2}\big)}, \qquad g_t = \mathrm{sigmoid}(w_g^\top x_t + b_g)$$

    Cost:    as RandomFeatureAttention, causal; one more number a token and head.
    Use it:  for language models, where what is near counts more and old topics should fade.
    Avoid it: where something far back must be kept word for word: what is forgotten once is gone.
    Limits:  `causal` only, alone or with `lengths` or `since`. It wants one extra number a token and head, the logit of g, which
             `MultiHead` makes from x. Gates near one make the first denominators small, and below 10⁻² they are taken as that.
    Paper:   Peng et al. 2021, "Random feature attention", arXiv:2103.02143, eq. 7 (RFA-Gate).
    We differ: as RandomFeatureAttention. Keys that may not be seen leave the past as it is, g = 1.
    """

    facts = Facts(
        name="rfa_gate",
        year=2021,
        title="Random feature attention",
        paper="arXiv:2103.02143",
        formula="S ← g S + (1 − g) φ(k) vᵀ,  Sᵀφ(q) / z·φ(q)",
        time="L·F·V",
        memory="L·(C + F)",
        patterns=tuple(name for name in PATTERNS if name != "full"),
        normalised=False,
        positional=True,
        bias=False,
    )

    extra = 1

    def weights(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        *,
        extra_BMHE: Tensor | None = None,
    ) -> Tensor:
        rows = torch.arange(q_BLHK.shape[1], device=q_BLHK.device)
        return self.weights_of(rows, q_BLHK, k_BMHK, pattern, bias, extra_BMHE=extra_BMHE)

    def weights_of(
        self,
        rows: Tensor,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        *,
        extra_BMHE: Tensor | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        (L, H), M = q_BLHK.shape[1:3], k_BMHK.shape[1]
        mask_BHLM = pattern_rows(pattern, rows, L, M).mask(len(rows), M, q_BLHK.device)
        k_BMHF, log_g_BMH = self._gated(k_BMHK, extra_BMHE, H, keys_seen(pattern, k_BMHK))
        products_BHLM = torch.einsum("blhf,bmhf->bhlm", self.features(q_BLHK[:, rows]), k_BMHF)
        run_BHM = log_g_BMH.cumsum(1).transpose(1, 2)
        here_BHL = run_BHM[..., (rows + M - L).clamp(min=0)]  # the last query stands at the last key
        kept_BHLM = (here_BHL.unsqueeze(-1) - run_BHM.unsqueeze(-2)).masked_fill(~mask_BHLM, -torch.inf).exp()
        products_BHLM = products_BHLM * kept_BHLM
        return self.divide(products_BHLM, products_BHLM.sum(-1, keepdim=True)).to(q_BLHK.dtype)

    @unmixed
    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
        *,
        extra_BMHE: Tensor | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        past = None if state is None else running(state)
        k_BMHF, log_g_BMH = self._gated(k_BMHK, extra_BMHE, q_BLHK.shape[2], keys_seen(pattern, k_BMHK, past))
        out_BLHV, after = self.average(self.features(q_BLHK), k_BMHF, v_BMHV, True, past, log_g_BMH)
        if past is not None:
            past.move(k_BMHK, extra_BMHE, kv=after)
        return out_BLHV

    def _gated(self, k_BMHK: Tensor, extra_BMHE: Tensor | None, heads: int, seen_BM: Tensor | None) -> tuple[Tensor, Tensor]:
        """Features of the keys times 1 − g, and log g; zero both where a key may not be seen."""
        logit_BMH1 = share_heads(precise(self.check_extra(k_BMHK, extra_BMHE)), heads)
        k_BMHF = self.features(share_heads(k_BMHK, heads)) * torch.sigmoid(-logit_BMH1)
        return hide(k_BMHF, seen_BM), hide(logsigmoid(logit_BMH1), seen_BM).squeeze(-1)

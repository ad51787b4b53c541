"""Performer: softmax attention estimated from positive orthogonal random features (FAVOR+)."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from ..kernels import Bias, causal_favor, favor
from ..patterns import Pattern, full
from ._base import Facts, pattern_rows, share_heads, softmax_where, unmixed
from ._kernel import PATTERNS, Kernel, ending, generator_of, hide, is_causal, keys_seen, precise
from ._state import Running, State, running


class Performer(Kernel):
    r"""Positive random features whose products have the exponential of the scores as their mean take its place.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\sum_j \phi(q_i)^\top \phi(k_j)}, \qquad
      \phi(x)_f = \exp\!\big(\omega_f^\top x' - \tfrac12 \|x'\|^2\big), \quad x' = x / K^{1/4}$$

    with rows ω_f of standard normal length, orthogonal in blocks of K. φ(q)·φ(k)/F has the mean exp(q·k/√K).

    Cost:    time O((L + M)·F·(K + V)), causal O(L·(C + F)·(K + V)) in chunks of C = 64; memory O(L·K), causal sums every few
             chunks besides: features are formed again on the way back. A step costs O(F·V).
    Use it:  to run a model trained with softmax attention on long sequences, with small queries and keys, or to train one.
    Avoid it: with scores beyond a few units: the variance grows like exp(‖q' + k'‖²), and F features no longer do.
    Limits:  no bias: there are no scores. The size of heads is fixed when it is made. Patterns as LinearAttention's.
    Paper:   Choromanski et al. 2020, "Rethinking attention with performers", arXiv:2009.14794, section 2, lemma 1, eq. 5.
    We differ: the usual code subtracts the largest exponent of all keys and adds 10⁻⁴ to every feature, so that large keys to come change
             the past, and small ones drown. Here each feature has its own largest exponent so far, which decays the
             sums when it grows and is given back to the query: nothing is added, denominators are at least one, however
             large the scores, and the future has no influence at all. Rows of ω are turned by the signs that the QR
             decomposition leaves open: without them their mean is not zero. They stay until `redraw(seed)`.
    """

    facts = Facts(
        name="performer",
        year=2020,
        title="Rethinking attention with performers",
        paper="arXiv:2009.14794",
        formula="φ(q)·φ(k) / Σ φ(q)·φ(k) v,  φ = exp(ωx − ‖x‖²/2)",
        time="(L + M)·F·V",
        memory="L·K",
        patterns=PATTERNS,
        bias=False,
    )

    def __init__(self, *, width: int, features: int | None = None, seed: int | None = None):
        super().__init__()
        self.width: int = width
        self.omega_FK: Tensor
        self.register_buffer("omega_FK", torch.empty(max(1, int(width * math.log(width))) if features is None else features, width))
        self.redraw(seed)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(width=width)

    def redraw(self, seed: int | None = None) -> None:
        """Other features, from `seed` or else from PyTorch's generator. States that are under way belong to the old ones."""
        (F, K), generator = self.omega_FK.shape, generator_of(seed)
        normal = torch.randn(-(-F // K), K, K, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(normal)
        directions = (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT.reshape(-1, K)[:F]  # without the signs q leans to one side
        lengths = torch.randn(F, K, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
        self.omega_FK.copy_(directions * lengths)

    def exponents(self, x_BLHK: Tensor) -> Tensor:
        """log φ(x), x_BLHF."""
        x = precise(x_BLHK) / math.sqrt(math.sqrt(self.width))
        return x @ precise(self.omega_FK).mT - x.square().sum(-1, keepdim=True) / 2

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        (L, H), M = q_BLHK.shape[1:3], k_BMHK.shape[1]
        mask_BHLM = pattern_rows(pattern, rows, L, M).mask(len(rows), M, q_BLHK.device)
        q_BHLF, k_BHMF = (self.exponents(x).transpose(1, 2) for x in (q_BLHK[:, rows], share_heads(k_BMHK, H)))
        scores_BHLM = q_BLHK.new_full((len(q_BLHK), H, len(rows), M), -torch.inf, dtype=q_BHLF.dtype)
        for q_BHL, k_BHM in zip(q_BHLF.unbind(-1), k_BHMF.unbind(-1), strict=True):  # one feature at a time: never L × M × F
            scores_BHLM = torch.logaddexp(scores_BHLM, q_BHL.unsqueeze(-1) + k_BHM.unsqueeze(-2))
        return softmax_where(scores_BHLM, mask_BHLM).to(q_BLHK.dtype)

    @unmixed
    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        past, causal, (L, H), M = None if state is None else running(state), is_causal(pattern), q_BLHK.shape[1:3], k_BMHK.shape[1]
        k, v, seen_BM, found = share_heads(k_BMHK, H), share_heads(v_BMHV, H), keys_seen(pattern, k_BMHK, past), None
        if M > 1 and not causal:
            found = favor(q_BLHK, k, v, self.omega_FK, seen_BM, *self._before(k, v, past))
        elif M > 1 and (past is None or L <= M):
            found = causal_favor(ending(q_BLHK, M), k, v, self.omega_FK, seen_BM, *self._before(k, v, past))
        if found is None:  # a step, or exponents that grow too fast for one reference a chunk
            found = self._token_by_token(q_BLHK, k, v, seen_BM, causal, past)
        out_BLHV, kv, top = found
        if past is not None:
            past.move(k_BMHK, kv=kv, top=_finite(top))
        return ending(out_BLHV, L)

    def _token_by_token(
        self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, seen_BM: Tensor | None, causal: bool, past: Running | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Every token decays the sums to its own reference."""
        q_BLHF, k_BMHF = self.exponents(q_BLHK), hide(self.exponents(k_BMHK), seen_BM, -torch.inf)
        with torch.no_grad():  # what is taken from the keys and given to the query cancels: it has no gradient
            before_B1HF, decay_BMHF = self._before(k_BMHK, v_BMHV, past)[1].unsqueeze(1), None
            tops = torch.cat([before_B1HF, k_BMHF], 1)
            if causal:
                tops = tops.cummax(1).values
                top_BMHF = _finite(tops[:, 1:])
                decay_BMHF = _finite(tops[:, :-1] - top_BMHF)  # before the first key there is nothing to decay
            else:
                tops = tops.amax(1, keepdim=True)
                top_BMHF = _finite(tops)
        if past is not None and not causal:
            past.sums["kv"] = past.sums["kv"] * (before_B1HF - top_BMHF).exp().squeeze(1).unsqueeze(-1)
        q_BLHF = q_BLHF + (ending(top_BMHF, q_BLHK.shape[1]) if causal else top_BMHF)
        q_BLHF = (q_BLHF - q_BLHF.detach().amax(-1, keepdim=True)).exp()
        out_BLHV, after = self.average(q_BLHF, (k_BMHF - top_BMHF).exp(), v_BMHV, causal, past, decay_BMHF)
        return out_BLHV, after, tops[:, -1]

    def _before(self, k_BMHK: Tensor, v_BMHV: Tensor, past: Running | None) -> tuple[Tensor, Tensor]:
        """The sums over the keys of the past, (B, H, F, V + 1), and the largest exponent of each feature, −inf before the first key."""
        (B, _, H, _), F, V = k_BMHK.shape, len(self.omega_FK), v_BMHV.shape[-1] + 1
        if past is None:
            zero = precise(k_BMHK.new_zeros(()))
            return zero.expand(B, H, F, V), (zero - torch.inf).expand(B, H, F)
        kv_BHFV = past.sum("kv", (H, F, V), k_BMHK)
        return kv_BHFV, past.sum("top", (H, F), k_BMHK).masked_fill(kv_BHFV.detach()[..., -1] == 0, -torch.inf)

    def extra_repr(self) -> str:
        return f"width={self.width}, features={len(self.omega_FK)}"


def _finite(x: Tensor) -> Tensor:
    return x.masked_fill(x == -torch.inf, 0)

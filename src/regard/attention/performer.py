"""Performer: softmax attention estimated from positive orthogonal random features (FAVOR+)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..bounds import Seed, Size
from ..kernels import causal_favor, favor
from ._base import Call, Paper
from ._feature_map import FeatureMapAttention, FeatureMapFacts, recurrent
from ._recurrent_state import RecurrentState
from .helpers import float32_or_wider, hide_keys, is_causal, last_tokens, no_autocast, seeded_generator, share_heads, softmax_where


class Performer(FeatureMapAttention):
    r"""Positive random features replace the exponential of the scores, which is the expectation of their dot products.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\sum_j \phi(q_i)^\top \phi(k_j)}, \qquad
      \phi(x)_f = \exp\!\big(\omega_f^\top x' - \tfrac12 \|x'\|^2\big), \quad x' = x / K^{1/4}$$

    with rows ω_f of the norm of a standard normal vector, orthogonal in blocks of K. φ(q)·φ(k)/F has mean exp(q·k/√K).

    Cost:    time O((L + M)·F·(K + V)), causal O(L·(C + F)·(K + V)) in chunks of C = 64; memory O(L·K), causal also
             sums every few chunks: features are recomputed in the backward pass. A decoding step costs O(F·V).
    Use it:  to run a model trained with softmax attention on long sequences, with small queries and keys, or to train one.
    Avoid it: with scores beyond a few units: the variance grows like exp(‖q' + k'‖²), and F features no longer suffice.
    Limits:  no bias: there are no scores. The head size is fixed at construction. Patterns as for LinearAttention.
    Args:
        head_dim: size K of queries and keys.
        num_features: number F of random features; K·ln K if not given.
        seed: seed of the random features; None: PyTorch's global generator.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Choromanski et al. 2020, "Rethinking attention with performers", arXiv:2009.14794, section 2, lemma 1, eq. 5.
    We differ: the usual code subtracts the largest exponent of all keys and adds 10⁻⁴ to every feature, so that
             large future keys change the past, and small ones drown. Here each feature has its own running maximum,
             which rescales the sums when it grows and is added back to the query: no constant is added, denominators
             are at least one for any scores, and the future has no influence. Rows of ω get the signs that the QR
             decomposition leaves open: without them their mean is not zero. They are fixed until `redraw(seed)`.
    """

    facts = FeatureMapFacts(
        name="performer",
        paper=Paper("Rethinking attention with performers", 2020, "arXiv:2009.14794"),
        formula="φ(q)·φ(k) / Σ φ(q)·φ(k) v,  φ = exp(ωx − ‖x‖²/2)",
        time="(L + M)·F·V",
        memory="L·K",
    )

    head_dim: int
    omega_FK: Tensor

    def __init__(self, *, head_dim: Size, num_features: Size | None = None, seed: Seed | None = None):
        super().__init__()
        self.head_dim, self.seed = head_dim, seed
        self.num_features = max(1, int(head_dim * math.log(head_dim))) if num_features is None else num_features
        self.register_buffer("omega_FK", torch.empty(self.num_features, head_dim))
        self.redraw(seed)

    def redraw(self, seed: int | None = None) -> None:
        """Draw new features, from `seed` or else from PyTorch's global generator. Existing states belong to the old ones."""
        (F, K), generator = self.omega_FK.shape, seeded_generator(seed)
        normal = torch.randn(-(-F // K), K, K, generator=generator, dtype=torch.float64, device="cpu")
        q, r = torch.linalg.qr(normal)
        directions = (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT.reshape(-1, K)[:F]  # without the signs q is biased
        lengths = torch.randn(F, K, generator=generator, dtype=torch.float64, device="cpu").norm(dim=-1, keepdim=True)
        self.omega_FK.copy_(directions * lengths)

    def exponents(self, x_BLHK: Tensor) -> Tensor:
        """log φ(x), x_BLHF."""
        x = float32_or_wider(x_BLHK) / math.sqrt(math.sqrt(self.head_dim))
        return x @ float32_or_wider(self.omega_FK).mT - x.square().sum(-1, keepdim=True) / 2

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        H = q_BLHK.shape[2]
        q_BHLF, k_BHMF = (self.exponents(x).transpose(1, 2) for x in (q_BLHK, share_heads(k_BMHK, H)))
        scores_BHLM = q_BLHK.new_full((len(q_BLHK), H, call.queries, call.keys), -torch.inf, dtype=q_BHLF.dtype)
        for q_BHL, k_BHM in zip(q_BHLF.unbind(-1), k_BHMF.unbind(-1), strict=True):  # one feature at a time: never L × M × F
            scores_BHLM = torch.logaddexp(scores_BHLM, q_BHL.unsqueeze(-1) + k_BHM.unsqueeze(-2))
        return softmax_where(scores_BHLM, call.mask()).to(q_BLHK.dtype)

    @no_autocast
    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        L, M, H, past, causal = call.queries, call.keys, q_BLHK.shape[2], recurrent(call), is_causal(call.pattern)
        k, v = share_heads(k_BMHK, H), share_heads(v_BMHV, H)
        allowed_BM, result = call.keys_allowed(), None
        if M > 1 and not causal:
            result = favor(q_BLHK, k, v, self.omega_FK, allowed_BM, *self._before(k, v, past))
        elif M > 1 and (past is None or L <= M):
            result = causal_favor(last_tokens(q_BLHK, M), k, v, self.omega_FK, allowed_BM, *self._before(k, v, past))
        if result is None:  # a step, or exponents that grow too fast for one reference per chunk
            result = self._token_by_token(q_BLHK, k, v, allowed_BM, causal, past)
        out_BLHV, kv, top = result
        if past is not None:
            past.move(k_BMHK, kv=kv, top=_finite(top))
        return last_tokens(out_BLHV, L)

    def _token_by_token(
        self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, allowed_BM: Tensor | None, causal: bool, past: RecurrentState | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each token rescales the sums to its own reference exponent."""
        q_BLHF, k_BMHF = self.exponents(q_BLHK), hide_keys(self.exponents(k_BMHK), allowed_BM, -torch.inf)
        with torch.no_grad():  # subtracted from the keys and added to the query, it cancels: no gradient
            before_B1HF, decay_BMHF = self._before(k_BMHK, v_BMHV, past)[1].unsqueeze(1), None
            tops = torch.cat([before_B1HF, k_BMHF], 1)
            if causal:
                tops = tops.cummax(1).values
                top_BMHF = _finite(tops[:, 1:])
                decay_BMHF = _finite(tops[:, :-1] - top_BMHF)  # before the first key there is nothing to rescale
            else:
                tops = tops.amax(1, keepdim=True)
                top_BMHF = _finite(tops)
        if past is not None and not causal:
            past.sums["kv"] = past.sums["kv"] * (before_B1HF - top_BMHF).exp().squeeze(1).unsqueeze(-1)
        q_BLHF = q_BLHF + (last_tokens(top_BMHF, q_BLHK.shape[1]) if causal else top_BMHF)
        q_BLHF = (q_BLHF - q_BLHF.detach().amax(-1, keepdim=True)).exp()
        out_BLHV, after = self.average(q_BLHF, (k_BMHF - top_BMHF).exp(), v_BMHV, causal, past, decay_BMHF)
        return out_BLHV, after, tops[:, -1]

    def _before(self, k_BMHK: Tensor, v_BMHV: Tensor, past: RecurrentState | None) -> tuple[Tensor, Tensor]:
        """The sums over the keys of the past, (B, H, F, V + 1), and the largest exponent of each feature, −inf before the first key."""
        (B, _, H, _), F, V = k_BMHK.shape, len(self.omega_FK), v_BMHV.shape[-1] + 1
        if past is None:
            zero = float32_or_wider(k_BMHK.new_zeros(()))
            return zero.expand(B, H, F, V), (zero - torch.inf).expand(B, H, F)
        kv_BHFV = past.sum("kv", (H, F, V), k_BMHK)
        return kv_BHFV, past.sum("top", (H, F), k_BMHK).masked_fill(kv_BHFV.detach()[..., -1] == 0, -torch.inf)


def _finite(x: Tensor) -> Tensor:
    return x.masked_fill(x == -torch.inf, 0)

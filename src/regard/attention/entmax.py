"""Sparse attention weights: α-entmax in place of softmax."""

from __future__ import annotations

from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from ._base import Call, Facts, Paper
from ._score import ScoreAttention
from .helpers import float32_or_wider, share_heads

Alpha = Annotated[float, Meta(gt=1, le=2, description="softmax is the limit at 1, sparsemax is 2")]


class EntmaxAttention(ScoreAttention):
    r"""Like softmax attention, but keys with low scores get a weight of exactly zero.

    $$o_i = \sum_j \Big[(\alpha - 1) \frac{q_i^\top k_j}{\sqrt{K}} - \tau_i\Big]_+^{1 / (\alpha - 1)} v_j, \qquad
      \tau_i \text{ such that the weights sum to one}$$

    Which is the p on the simplex with the largest p·s + H(p), where H is Tsallis's entropy of order `alpha`. The nearer α is to 1, the
    nearer to softmax; at 2 it is sparsemax, the point of the simplex nearest to the scores.

    Cost:    time O(L·M·K), with 11 passes over the scores of a row to find τ; memory O(L·K).
    Use it:  for weights that are to be read, or where most keys are irrelevant and softmax gives them too much together.
    Avoid it: for speed: no key is skipped, since its score must be known to be low.
    Limits:  1 < `alpha` ≤ 2. A key of weight zero receives no gradient.
    Args:
        alpha: α, above 1 (softmax) and up to 2 (sparsemax).
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Peters et al. 2019, "Sparse sequence-to-sequence models", arXiv:1905.05702, section 3.
             Sparsemax: Martins & Astudillo 2016, arXiv:1602.02068. In Transformers: Correia et al. 2019, arXiv:1909.00015.
             We differ: one fixed α for all heads, which Correia et al. learn for each; τ by Newton's method, not by
             sorting or bisection.
    """

    facts = Facts(
        name="entmax",
        paper=Paper("Sparse sequence-to-sequence models", 2019, "arXiv:1905.05702"),
        formula="max((α − 1) q·k / √K − τ, 0)^(1/(α−1)) v",
        time="L·M·K",
        memory="L·K",
    )

    def __init__(self, *, alpha: Alpha = 1.5):
        super().__init__()
        self.alpha = alpha

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return float32_or_wider(q_BLHK) * q_BLHK.shape[-1] ** -0.5, float32_or_wider(k_BMHK)

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, q_BLHK.shape[2]))

    def normalise(self, scores_BHLM: Tensor, mask_BHLM: Tensor) -> Tensor:
        mask_BHLM = mask_BHLM & ~scores_BHLM.isneginf()  # a bias of −∞ forbids, too: a row of them is zeros, as of softmax
        lowest = torch.finfo(scores_BHLM.dtype).min / 4  # finite, so a row without an allowed key has a maximum
        x_BHLM = ((self.alpha - 1) * scores_BHLM).clamp(min=lowest).masked_fill(~mask_BHLM, lowest)
        x_BHLM = x_BHLM - x_BHLM.detach().amax(-1, keepdim=True)
        return (x_BHLM - self._threshold(x_BHLM)).relu() ** (1 / (self.alpha - 1)) * mask_BHLM

    def numbers_per_pair(self, q_BLHK: Tensor) -> int:
        return 4  # a score, its distance from τ, and two powers of it

    def _threshold(self, x_BHLM: Tensor) -> Tensor:
        """τ of rows whose maximum is 0: Newton's method on the p-norm of [x − τ]₊, which is to be one; p = 1/(α − 1).

        The norm is convex and falls as τ grows, so from τ = −1, where it is at least one, the steps come closer from below. At most 9
        were needed for an error of 1e-7, for α from 1.02 to 2 and up to 8,192 keys of six distributions; bisection needs 24.
        """
        power, tau_BHL1 = 1 / (self.alpha - 1), torch.full_like(x_BHLM[..., :1], -1.0)
        with torch.no_grad():
            for _ in range(10):
                sum_BHL1, slope_BHL1 = self._sums(x_BHLM, tau_BHL1)
                tau_BHL1 = tau_BHL1 + (sum_BHL1 - sum_BHL1 ** (1 - 1 / power)) / slope_BHL1
        sum_BHL1, slope_BHL1 = self._sums(x_BHLM, tau_BHL1)  # with gradient: that of the implicit function τ(x)
        return tau_BHL1 + (sum_BHL1 - 1) / (power * slope_BHL1.detach())

    def _sums(self, x_BHLM: Tensor, tau_BHL1: Tensor) -> tuple[Tensor, Tensor]:
        """Σ [x − τ]₊^p and Σ [x − τ]₊^(p−1)."""
        above_BHLM, power = (x_BHLM - tau_BHL1).relu(), 1 / (self.alpha - 1)
        less_BHLM = above_BHLM.detach() ** (power - 1) * (above_BHLM > 0)
        return (above_BHLM**power).sum(-1, keepdim=True), less_BHLM.sum(-1, keepdim=True)

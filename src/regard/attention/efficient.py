"""Shen's efficient attention: two softmaxes, of queries over features and of keys over positions."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Bias
from ..patterns import Pattern, full
from ._base import Attention, Facts, share_heads, softmax_where, unmixed
from ._kernel import keys_seen, precise
from ._state import State


class EfficientAttention(Attention):
    r"""Every feature of the keys is a distribution over positions, and every query mixes these distributions.

    $$o_i = \sum_f \mathrm{softmax}_f(q_i)_f \sum_j \mathrm{softmax}_j(k)_{jf}\; v_j$$

    Cost:    time O((L + M)·K·V); memory O((L + M)·K + K·V): the K global summaries of the values are made once for all queries.
    Use it:  where a picture or a long text is to be summed up from all sides at once: features become global themes.
    Avoid it: for looking single things up; a query chooses among K themes, not among M keys.
    Limits:  nothing of it is causal: the softmax over positions gives every weight a denominator made of all keys, the future among
             them, so `causal` is refused and there are no steps. No bias: there are no scores. Patterns say which keys are real.
    Paper:   Shen et al. 2018, "Efficient attention: attention with linear complexities", arXiv:1812.01243, eq. 4 and 6.
    We differ: not at all; q and k are not scaled by K^−¼, as in the paper's softmax form.
    """

    facts = Facts(
        name="efficient",
        year=2018,
        title="Efficient attention: attention with linear complexities",
        paper="arXiv:1812.01243",
        formula="softmax_K(q) softmax_M(k)ᵀ v",
        time="(L + M)·K·V",
        memory="(L + M)·K",
        patterns=("full", "lengths", "since"),
        causal="none",
        streaming=False,
        bias=False,
    )

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        themes_BHKM = share_heads(_themes(k_BMHK, pattern).transpose(1, 2), q_BLHK.shape[2]).transpose(1, 2)
        return torch.einsum("blhk,bhkm->bhlm", precise(q_BLHK).softmax(-1), themes_BHKM).to(q_BLHK.dtype)

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        return self.weights(q_BLHK[:, rows], k_BMHK, pattern, bias)  # the rules it knows are the same for all queries

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
        summaries_BKHV = torch.einsum("bhkm,bmhv->bkhv", _themes(k_BMHK, pattern), precise(v_BMHV))
        summaries_BKHV = share_heads(summaries_BKHV, q_BLHK.shape[2])
        return torch.einsum("blhk,bkhv->blhv", precise(q_BLHK).softmax(-1), summaries_BKHV).to(v_BMHV.dtype)


def _themes(k_BMHK: Tensor, pattern: Pattern) -> Tensor:
    """Each feature as a distribution over the keys that are real, themes_BHKM."""
    k_BHKM, seen_BM = precise(k_BMHK).permute(0, 2, 3, 1), keys_seen(pattern, k_BMHK)
    if seen_BM is None and k_BHKM.shape[-1]:
        return k_BHKM.softmax(-1)
    seen_BM = torch.ones(1, k_BHKM.shape[-1], dtype=torch.bool, device=k_BMHK.device) if seen_BM is None else seen_BM
    return softmax_where(k_BHKM, seen_BM[:, None, None])

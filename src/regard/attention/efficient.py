"""Shen's efficient attention: two softmaxes, of queries over features and of keys over positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels import Bias
from ..patterns import Pattern, full
from ._base import Attention, Facts, share_heads, softmax_where, unmixed
from ._kernel import keys_seen, precise
from ._state import State


class EfficientAttention(Attention):
    r"""Every feature of the keys is a distribution over positions, and every query mixes these distributions.

    $$o_i = \sum_f \mathrm{softmax}_f(q_i)_f \sum_j \mathrm{softmax}_j(k)_{jf}\; v_j$$

    Cost:    time O((L + M)·K·V); memory O((L + M)·K): the K global summaries of the values are made once for all queries, and of
             the softmaxes nothing is kept; they are formed again on the way back.
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
        summaries_BKHV = Summaries.apply(k_BMHK, v_BMHV, keys_seen(pattern, k_BMHK))  # type: ignore[no-untyped-call]
        return Mixed.apply(q_BLHK, share_heads(summaries_BKHV, q_BLHK.shape[2])).to(v_BMHV.dtype)  # type: ignore[no-any-return, no-untyped-call]


class Summaries(torch.autograd.Function):
    """s_f = Σ_j p_jf v_j with p = softmax_j(k): summaries_BKHV, zero where there is nothing to sum up.

    dv_j = Σ_f p_jf ds_f  and  dk_jf = p_jf (v_j·ds_f − s_f·ds_f): p comes back from k and its log-sum-exp.
    """

    @staticmethod
    def forward(ctx: Any, k_BMHK: Tensor, v_BMHV: Tensor, seen_BM: Tensor | None) -> Tensor:
        hidden_BM11 = None if seen_BM is None else ~seen_BM[..., None, None]
        k = precise(k_BMHK) if hidden_BM11 is None else precise(k_BMHK).masked_fill(hidden_BM11, -torch.inf)
        if not k.shape[1]:
            k = k.new_full((len(k), 1, *k.shape[2:]), -torch.inf)  # nothing has no maximum
        top_B1HK = k.amax(1, keepdim=True)
        top_B1HK = top_B1HK.masked_fill(top_B1HK == -torch.inf, 0)
        p_BMHK = k.sub(top_B1HK).exp_()
        total_B1HK = p_BMHK.sum(1, keepdim=True)
        total_B1HK = total_B1HK.masked_fill_(total_B1HK == 0, 1)
        v = precise(v_BMHV)
        summaries_BKHV = torch.einsum("bmhk,bmhv->bkhv", p_BMHK[:, : v.shape[1]], v).div_(total_B1HK.permute(0, 3, 2, 1))
        ctx.save_for_backward(k_BMHK, v_BMHV, hidden_BM11, total_B1HK.log().add_(top_B1HK), summaries_BKHV)
        return summaries_BKHV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds_BKHV: Tensor) -> tuple[Tensor | None, ...]:
        k_BMHK, v_BMHV, hidden_BM11, lse_B1HK, summaries_BKHV = ctx.saved_tensors
        p_BMHK = precise(k_BMHK).sub(lse_B1HK).exp_()
        if hidden_BM11 is not None:
            p_BMHK.masked_fill_(hidden_BM11, 0)
        dv_BMHV = torch.einsum("bmhk,bkhv->bmhv", p_BMHK, ds_BKHV)
        dk_BMHK = torch.einsum("bmhv,bkhv->bmhk", precise(v_BMHV), ds_BKHV)
        dk_BMHK = dk_BMHK.sub_((summaries_BKHV * ds_BKHV).sum(-1).transpose(1, 2).unsqueeze(1)).mul_(p_BMHK)
        return dk_BMHK.to(k_BMHK.dtype), dv_BMHV.to(v_BMHV.dtype), None


class Mixed(torch.autograd.Function):
    """o_i = Σ_f p_if s_f with p = softmax_f(q), which is formed again on the way back."""

    @staticmethod
    def forward(ctx: Any, q_BLHK: Tensor, summaries_BKHV: Tensor) -> Tensor:
        ctx.save_for_backward(q_BLHK, summaries_BKHV)
        return torch.einsum("blhk,bkhv->blhv", precise(q_BLHK).softmax(-1), summaries_BKHV)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BLHV: Tensor) -> tuple[Tensor, Tensor]:
        q_BLHK, summaries_BKHV = ctx.saved_tensors
        p_BLHK = precise(q_BLHK).softmax(-1)
        ds_BKHV = torch.einsum("blhk,blhv->bkhv", p_BLHK, do_BLHV)
        dp_BLHK = torch.einsum("blhv,bkhv->blhk", do_BLHV, summaries_BKHV)
        dq_BLHK = torch._softmax_backward_data(dp_BLHK, p_BLHK, -1, p_BLHK.dtype)
        return dq_BLHK.to(q_BLHK.dtype), ds_BKHV


def _themes(k_BMHK: Tensor, pattern: Pattern) -> Tensor:
    """Each feature as a distribution over the keys that are real, themes_BHKM."""
    k_BHKM, seen_BM = precise(k_BMHK).permute(0, 2, 3, 1), keys_seen(pattern, k_BMHK)
    if seen_BM is None and k_BHKM.shape[-1]:
        return k_BHKM.softmax(-1)
    seen_BM = torch.ones(1, k_BHKM.shape[-1], dtype=torch.bool, device=k_BMHK.device) if seen_BM is None else seen_BM
    return softmax_where(k_BHKM, seen_BM[:, None, None])

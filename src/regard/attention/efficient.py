"""Efficient attention (Shen): a softmax of queries over features and one of keys over positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import first_derivatives_only
from ._base import Attention, Call, Facts, Paper
from .helpers import float32_or_wider, no_autocast, share_heads, softmax_where


class EfficientAttention(Attention):
    r"""Each key feature defines a distribution over positions, and each query mixes these distributions.

    $$o_i = \sum_f \mathrm{softmax}_f(q_i)_f \sum_j \mathrm{softmax}_j(k)_{jf}\; v_j$$

    Cost:    time O((L + M)·K·V); memory O((L + M)·K): the K global summaries of the values are computed once for
             all queries, and the softmaxes are recomputed in the backward pass.
    Use it:  to summarise a whole image or a long text: features become global themes.
    Avoid it: for looking up single items: a query chooses among K themes, not among M keys.
    Limits:  not causal: the softmax over positions puts all keys, future ones included, into every denominator, so `causal`
             and streaming are refused. No bias: there are no scores. Patterns mask keys only (`lengths`, `since`).
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Shen et al. 2018, "Efficient attention: attention with linear complexities", arXiv:1812.01243, eq. 4 and 6.
    We differ: nothing; as in the paper's softmax form, q and k are not scaled by K^−¼.
    """

    facts = Facts(
        name="efficient",
        paper=Paper("Efficient attention: attention with linear complexities", 2018, "arXiv:1812.01243"),
        formula="softmax_K(q) softmax_M(k)ᵀ v",
        time="(L + M)·K·V",
        memory="(L + M)·K",
        patterns=("full", "lengths", "since"),
        state=None,
        bias=False,
    )

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        themes_BHKM = share_heads(_themes(k_BMHK, call).transpose(1, 2), q_BLHK.shape[2]).transpose(1, 2)
        return torch.einsum("blhk,bhkm->bhlm", float32_or_wider(q_BLHK).softmax(-1), themes_BHKM).to(q_BLHK.dtype)

    @no_autocast
    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        allowed_BM = call.keys_allowed()
        summaries_BKHV = Summaries.apply(k_BMHK, v_BMHV, allowed_BM)  # type: ignore[no-untyped-call]
        return MixSummaries.apply(q_BLHK, share_heads(summaries_BKHV, q_BLHK.shape[2])).to(v_BMHV.dtype)  # type: ignore[no-untyped-call]


class Summaries(torch.autograd.Function):
    """s_f = Σ_j p_jf v_j with p = softmax_j(k): summaries_BKHV, zero where no key is allowed.

    dv_j = Σ_f p_jf ds_f  and  dk_jf = p_jf (v_j·ds_f − s_f·ds_f): p is recovered from k and its log-sum-exp.
    """

    @staticmethod
    def forward(ctx: Any, k_BMHK: Tensor, v_BMHV: Tensor, allowed_BM: Tensor | None) -> Tensor:
        hidden_BM11 = None if allowed_BM is None else ~allowed_BM[..., None, None]
        k = float32_or_wider(k_BMHK) if hidden_BM11 is None else float32_or_wider(k_BMHK).masked_fill(hidden_BM11, -torch.inf)
        if not k.shape[1]:
            k = k.new_full((len(k), 1, *k.shape[2:]), -torch.inf)  # amax needs at least one key
        top_B1HK = k.amax(1, keepdim=True)
        top_B1HK = top_B1HK.masked_fill(top_B1HK == -torch.inf, 0)
        p_BMHK = k.sub(top_B1HK).exp_()
        total_B1HK = p_BMHK.sum(1, keepdim=True)
        total_B1HK = total_B1HK.masked_fill_(total_B1HK == 0, 1)
        v = float32_or_wider(v_BMHV)
        summaries_BKHV = torch.einsum("bmhk,bmhv->bkhv", p_BMHK[:, : v.shape[1]], v).div_(total_B1HK.permute(0, 3, 2, 1))
        ctx.save_for_backward(k_BMHK, v_BMHV, hidden_BM11, total_B1HK.log().add_(top_B1HK), summaries_BKHV)
        return summaries_BKHV

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, ds_BKHV: Tensor) -> tuple[Tensor | None, ...]:
        k_BMHK, v_BMHV, hidden_BM11, lse_B1HK, summaries_BKHV = ctx.saved_tensors
        p_BMHK = float32_or_wider(k_BMHK).sub(lse_B1HK).exp_()
        if hidden_BM11 is not None:
            p_BMHK.masked_fill_(hidden_BM11, 0)
        dv_BMHV = torch.einsum("bmhk,bkhv->bmhv", p_BMHK, ds_BKHV)
        dk_BMHK = torch.einsum("bmhv,bkhv->bmhk", float32_or_wider(v_BMHV), ds_BKHV)
        dk_BMHK = dk_BMHK.sub_((summaries_BKHV * ds_BKHV).sum(-1).transpose(1, 2).unsqueeze(1)).mul_(p_BMHK)
        return dk_BMHK.to(k_BMHK.dtype), dv_BMHV.to(v_BMHV.dtype), None


class MixSummaries(torch.autograd.Function):
    """o_i = Σ_f p_if s_f with p = softmax_f(q), recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, q_BLHK: Tensor, summaries_BKHV: Tensor) -> Tensor:
        ctx.save_for_backward(q_BLHK, summaries_BKHV)
        return torch.einsum("blhk,bkhv->blhv", float32_or_wider(q_BLHK).softmax(-1), summaries_BKHV)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, do_BLHV: Tensor) -> tuple[Tensor, Tensor]:
        q_BLHK, summaries_BKHV = ctx.saved_tensors
        p_BLHK = float32_or_wider(q_BLHK).softmax(-1)
        ds_BKHV = torch.einsum("blhk,blhv->bkhv", p_BLHK, do_BLHV)
        dq_BLHK = torch.einsum("blhv,bkhv->blhk", do_BLHV, summaries_BKHV).mul_(p_BLHK)
        dq_BLHK.addcmul_(p_BLHK, dq_BLHK.sum(-1, keepdim=True), value=-1)
        return dq_BLHK.to(q_BLHK.dtype), ds_BKHV


def _themes(k_BMHK: Tensor, call: Call) -> Tensor:
    """Each feature as a distribution over the allowed keys, themes_BHKM."""
    k_BHKM, allowed_BM = float32_or_wider(k_BMHK).permute(0, 2, 3, 1), call.keys_allowed()
    if allowed_BM is None and k_BHKM.shape[-1]:
        return k_BHKM.softmax(-1)
    allowed_BM = torch.ones(1, k_BHKM.shape[-1], dtype=torch.bool, device=k_BMHK.device) if allowed_BM is None else allowed_BM
    return softmax_where(k_BHKM, allowed_BM[:, None, None])

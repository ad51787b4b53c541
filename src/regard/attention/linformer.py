"""Linformer: keys and values projected along the length to a fixed number of slots."""

from __future__ import annotations

from typing import Literal, Self

import torch
from torch import Tensor

from ..bounds import Heads, Size
from ..errors import BadConfig
from ..kernels import attend
from ..patterns import Full
from ._base import Attention, Call, Facts, Paper
from .helpers import share_heads, uniform_parameter

Sharing = Literal["none", "headwise", "key-value"]


class LinformerAttention(Attention):
    r"""Keys and values are each projected to `rank` learned mixtures, and queries attend to those.

    $$o = \mathrm{softmax}\big(q\,(Ek)^\top / \sqrt{K}\big)\, F v \qquad E, F \in \mathbb{R}^{R \times N}, \; R \ll N$$

    Cost:    time O((L + M)·R·K), memory O((L + R)·K): linear in the length. R·N parameters for each of E and F,
             more or fewer by `sharing`.
    Use it:  in encoders of nearly constant length, where softmax over all pairs is too slow.
    Avoid it: in decoders, and where exact positions must be copied: R mixtures distinguish at most R positions.
    Limits:  at most `max_length` keys; fewer use the first columns of E and F. Not causal: every mixture contains every key.
    Weights: softmax(q (Ek)ᵀ) F over the original keys: the factor of each value. F has any sign, so rows are signed
             and do not sum to one. Keys beyond `lengths` enter neither mixture.
    Args:
        max_length: maximum number of keys N.
        rank: number of mixtures R.
        sharing: "none": E and F per head; "headwise": one E and one F; "key-value": E = F.
        heads: number of heads, for `sharing="none"` only; otherwise any number fits.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Wang et al. 2020, "Linformer: self-attention with linear complexity", arXiv:2006.04768, eq. 7, section 4.
    Sharing: as named in the paper: "none" (E and F per head), "headwise" (one E, one F), "key-value" (E = F). Its
             "layerwise" is one LinformerAttention(sharing="key-value") used in all layers.
    """

    facts = Facts(
        name="linformer",
        paper=Paper("Linformer: self-attention with linear complexity", 2020, "arXiv:2006.04768"),
        formula="softmax(q·Ek / √K) Fv",
        time="(L + M)·R·K",
        memory="(L + R)·K",
        patterns=("full", "lengths"),
        state=None,
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(self, *, max_length: Size, rank: Size = 128, sharing: Sharing = "headwise", heads: Heads | None = None):
        super().__init__()
        if (sharing == "none") != (heads is not None):
            raise BadConfig(f"LinformerAttention: sharing={sharing!r}, heads={heads}; expected heads if and only if sharing='none'")
        self.max_length, self.rank, self.sharing, self.heads = max_length, rank, sharing, heads
        self.e_HRN = uniform_parameter(heads or 1, rank, max_length, fan=max_length)
        self.f_HRN = None if sharing == "key-value" else uniform_parameter(heads or 1, rank, max_length, fan=max_length)

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(max_length=length, rank=min(128, length))

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        (H, K), M = q_BLHK.shape[2:], call.keys
        e_BHRM, f_BHRM = (p[:, :, :M] * call.pattern.mask(1, M, p.device) for p in self._projections())
        slots_BHRK = e_BHRM @ share_heads(k_BMHK, H).transpose(1, 2)
        scores_BHLR = q_BLHK.transpose(1, 2) @ slots_BHRK.mT / K**0.5
        return torch.matmul(scores_BHLR.softmax(-1), f_BHRM)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        e_HRN, f_HRN = self._projections()
        if not isinstance(call.pattern, Full):
            padding_BM11 = ~call.pattern.mask(1, call.keys, call.device)[:, 0, 0, :, None, None]
            k_BMHK, v_BMHV = k_BMHK.masked_fill(padding_BM11, 0), v_BMHV.masked_fill(padding_BM11, 0)
        return attend(q_BLHK, _project(e_HRN, k_BMHK), _project(f_HRN, v_BMHV))

    def _projections(self) -> tuple[Tensor, Tensor]:
        return self.e_HRN, self.e_HRN if self.f_HRN is None else self.f_HRN


def _project(p_HRN: Tensor, x_BMHK: Tensor) -> Tensor:
    """Keys or values projected along the length, (B, R, H, K)."""
    p_HRM = p_HRN[:, :, : x_BMHK.shape[1]]
    if len(p_HRM) == 1:  # one matmul for all heads
        return (p_HRM[0] @ x_BMHK.flatten(2)).unflatten(-1, x_BMHK.shape[2:])
    return torch.einsum("hrm,bmhk->brhk", p_HRM, share_heads(x_BMHK, len(p_HRM)))

"""Linformer: keys and values projected along the length to a fixed number of summaries."""

from __future__ import annotations

from typing import Literal, Self

import torch
from torch import Tensor

from ..errors import ShapeError, UnknownName
from ..kernels import Bias, attend
from ..patterns import Full, Pattern, full
from ._base import Attention, Facts, share_heads
from ._scored import fits, uniform
from ._state import State

Sharing = Literal["none", "headwise", "key-value"]


class LinformerAttention(Attention):
    r"""All keys become `rank` learned mixtures of keys, all values as many mixtures of values; queries look at those.

    $$o = \mathrm{softmax}\big(q\,(Ek)^\top / \sqrt{K}\big)\, F v \qquad E, F \in \mathbb{R}^{R \times N}, \; R \ll N$$

    Cost:    time O((L + M)·R·K), memory O((L + R)·K): linear in the length. R·N parameters, twice, or more by `sharing`.
    Use it:  in encoders of nearly constant length, where softmax over all pairs is too slow.
    Avoid it: for decoders, and where exact positions must be copied: R mixtures cannot tell more than R places apart.
    Limits:  at most `length` keys; fewer use the first columns of E and F. No causal order: every mixture holds every key.
    Weights: softmax(q (Ek)ᵀ) F, over the original keys: what multiplies each value. F has any sign, so rows are signed and
             do not sum to one. Keys beyond `lengths` enter neither mixture.
    Paper:   Wang et al. 2020, "Linformer: self-attention with linear complexity", arXiv:2006.04768, eq. 7, section 4.
    Sharing: the paper's, by name: "none" (E and F for each head), "headwise" (one E, one F), "key-value" (E = F). Its
             "layerwise" is one LinformerAttention("key-value") given to all layers.
    """

    facts = Facts(
        name="linformer",
        year=2020,
        title="Linformer: self-attention with linear complexity",
        paper="arXiv:2006.04768",
        formula="softmax(q·Ek / √K) Fv",
        time="(L + M)·R·K",
        memory="(L + R)·K",
        patterns=("full", "lengths"),
        causal="none",
        streaming=False,
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(self, *, length: int, rank: int = 128, sharing: Sharing = "headwise", heads: int | None = None):
        super().__init__()
        if sharing not in ("none", "headwise", "key-value"):
            raise UnknownName("sharing of projections", sharing, ("none", "headwise", "key-value"))
        if rank < 1 or length < 1 or (sharing == "none") != (heads is not None):
            raise ShapeError(
                f"LinformerAttention takes rank and length of at least 1, and heads if and only if sharing='none', got rank={rank}, "
                f"length={length}, sharing={sharing!r}, heads={heads}"
            )
        self.length, self.rank, self.sharing, self.heads = length, rank, sharing, heads
        self.e_HRN = uniform(heads or 1, rank, length, fan=length)
        self.f_HRN = None if sharing == "key-value" else uniform(heads or 1, rank, length, fan=length)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(length=length, rank=min(128, length))

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        (H, K), M = q_BLHK.shape[2:], k_BMHK.shape[1]
        e_BHRM, f_BHRM = (p[:, :, :M] * pattern.mask(1, M, p.device) for p in self._projections())
        slots_BHRK = e_BHRM @ share_heads(k_BMHK, H).transpose(1, 2)
        scores_BHLR = q_BLHK.transpose(1, 2) @ slots_BHRK.mT / K**0.5
        return torch.matmul(scores_BHLR.softmax(-1), f_BHRM)

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
        e_HRN, f_HRN = self._projections()
        if not isinstance(pattern, Full):
            padding_BM11 = ~pattern.mask(1, k_BMHK.shape[1], k_BMHK.device)[:, 0, 0, :, None, None]
            k_BMHK, v_BMHV = k_BMHK.masked_fill(padding_BM11, 0), v_BMHV.masked_fill(padding_BM11, 0)
        return attend(q_BLHK, _mix(e_HRN, k_BMHK), _mix(f_HRN, v_BMHV))

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        return self.weights(q_BLHK[:, rows], k_BMHK, pattern, bias)

    def check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        super().check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, None)
        if k_BMHK.shape[1] > self.length:
            raise ShapeError(
                f"LinformerAttention projects up to {self.length} keys and was given {k_BMHK.shape[1]}; make it with "
                f"length={k_BMHK.shape[1]}, or use NystromAttention, which takes any number"
            )

    def _projections(self) -> tuple[Tensor, Tensor]:
        return self.e_HRN, self.e_HRN if self.f_HRN is None else self.f_HRN

    def extra_repr(self) -> str:
        return f"length={self.length}, rank={self.rank}, sharing={self.sharing!r}"


def _mix(p_HRN: Tensor, x_BMHK: Tensor) -> Tensor:
    """The mixtures of keys or values, (B, R, H, K)."""
    p_HRM = p_HRN[:, :, : x_BMHK.shape[1]]
    if len(p_HRM) == 1:  # one product for all heads
        return (p_HRM[0] @ x_BMHK.flatten(2)).unflatten(-1, x_BMHK.shape[2:])  # type: ignore[no-any-return]
    return torch.einsum("hrm,bmhk->brhk", p_HRM, share_heads(x_BMHK, len(p_HRM)))

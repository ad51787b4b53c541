"""Sources of the weights of a call that is not ours: what a fused kernel received, or a matrix that the model formed itself.

Both have a shape (batch, heads, queries, keys), know what they allow as text, and give the weights of some rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CaptureNotSupported
from ..kernels import accumulation_dtype


@dataclass(frozen=True, eq=False)
class Formed:
    """Weights that the model computed itself, before dropout."""

    weights_BHLM: Tensor
    pattern = "mask of the model"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights_BHLM.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights_BHLM.dtype

    @property
    def device(self) -> torch.device:
        return self.weights_BHLM.device

    def equals(self, other: Fused | Formed) -> bool:
        return isinstance(other, Formed) and torch.equal(self.weights_BHLM, other.weights_BHLM)

    def choose(self, heads: tuple[int, ...], keys: int) -> Formed:
        """Some heads, and the first keys."""
        chosen_BHLM = self.weights_BHLM[..., :keys]
        return Formed(chosen_BHLM if len(heads) == self.shape[1] else chosen_BHLM[:, list(heads)])

    def rows(self, rows: Tensor) -> Tensor:
        return self.weights_BHLM[:, :, rows]


@dataclass(frozen=True, eq=False)
class Fused:
    """The arguments of `scaled_dot_product_attention`. Keys may have fewer heads than queries (G of H)."""

    q_BHLK: Tensor
    k_BGMK: Tensor
    mask_BHLM: Tensor | None = None  # four dimensions, each full or 1; True may attend, or numbers to add
    causal: bool = False  # aligned at the first query and key
    scale: float | None = None

    @classmethod
    def from_call(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Fused:
        if query.dim() != 4:
            raise CaptureNotSupported(f"queries of shape {tuple(query.shape)}, expected (batch, heads, queries, head size)")
        B = query.shape[0]
        mask = None if attn_mask is None else attn_mask.detach().view((1,) * (4 - attn_mask.dim()) + attn_mask.shape)
        return cls(query.detach(), key.detach().expand(B, -1, -1, -1), mask, is_causal, scale)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.q_BHLK.shape[:3], self.k_BGMK.shape[2])

    @property
    def dtype(self) -> torch.dtype:
        return self.q_BHLK.dtype

    @property
    def device(self) -> torch.device:
        return self.q_BHLK.device

    @property
    def pattern(self) -> str:
        return "causal" if self.causal else "full" if self.mask_BHLM is None else "mask of the model"

    def equals(self, other: Fused | Formed) -> bool:
        return isinstance(other, Fused) and torch.equal(self.q_BHLK, other.q_BHLK) and torch.equal(self.k_BGMK, other.k_BGMK)

    def choose(self, heads: tuple[int, ...], keys: int) -> Fused:
        """Some heads, and the first keys."""
        (_, H, _, M), G, mask = self.shape, self.k_BGMK.shape[1], self.mask_BHLM
        q_BHLK, k_BGMK = self.q_BHLK, self.k_BGMK[:, :, :keys]
        if len(heads) < H:
            q_BHLK, k_BGMK = q_BHLK[:, list(heads)], k_BGMK[:, [head * G // H for head in heads]]
            mask = mask if mask is None or mask.shape[1] == 1 else mask[:, list(heads)]
        if mask is not None and mask.shape[3] == M:
            mask = mask[..., :keys]
        dtype = accumulation_dtype(self.dtype)  # as precise as softmax is in fused kernels
        return replace(self, q_BHLK=q_BHLK, k_BGMK=k_BGMK.to(dtype), mask_BHLM=mask)

    def rows(self, rows: Tensor) -> Tensor:
        (B, H, _, M), (G, K) = self.shape, self.k_BGMK.shape[1::2]
        q_BHLK = self.q_BHLK[:, :, rows].to(self.k_BGMK.dtype) * (1 / math.sqrt(K) if self.scale is None else self.scale)
        # the heads of a group as further rows, because matmul would copy the keys for each
        scores_BHLM = (q_BHLK.reshape(B, G, -1, K) @ self.k_BGMK.transpose(2, 3)).view(B, H, len(rows), M)
        if self.causal:
            ahead_LM = torch.arange(M, device=self.device) > rows[:, None]
            scores_BHLM = scores_BHLM.masked_fill_(ahead_LM, -torch.inf)
        mask = self.mask_BHLM
        if mask is not None:
            mask = mask if mask.shape[2] == 1 else mask[:, :, rows]
            scores_BHLM = scores_BHLM.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores_BHLM.add_(mask)
        nothing_BHL1 = (scores_BHLM == -torch.inf).all(-1, keepdim=True)  # SDPA gives zeros
        return scores_BHLM.softmax(-1).masked_fill_(nothing_BHL1, 0)


def of_function(
    query: Tensor,
    key: Tensor,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None = None,
    add_zero_attn: bool = False,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    **_: Any,
) -> Fused:
    """Rebuild what `torch.nn.functional.multi_head_attention_forward` attends with: q and k projected as it does, its masks as one."""
    if bias_k is not None or add_zero_attn:
        raise CaptureNotSupported("its keys are extended (add_bias_kv or add_zero_attn)")
    if q_proj_weight is None or k_proj_weight is None:
        assert in_proj_weight is not None
        q_proj_weight, k_proj_weight, _v = in_proj_weight.chunk(3)
    q_bias, k_bias = (None, None) if in_proj_bias is None else in_proj_bias.chunk(3)[:2]
    q_BHLK, k_BHMK = (
        nn.functional.linear(x if x.dim() == 3 else x[:, None], weight, bias).unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)
        for x, weight, bias in ((query, q_proj_weight, q_bias), (key, k_proj_weight, k_bias))
    )
    mask, padding = _added(attn_mask, q_BHLK), _added(key_padding_mask, q_BHLK)
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (-1, num_heads))
    if padding is not None:
        padding = padding.view(-1, 1, 1, padding.shape[-1])
        mask = padding if mask is None else mask + padding
    return Fused.from_call(q_BHLK, k_BHMK, k_BHMK, mask)


def of_module(module: nn.MultiheadAttention, arguments: dict[str, Any]) -> Fused:
    """Rebuild what `torch.nn.MultiheadAttention` attends with, whichever way it computes."""
    if module.batch_first and arguments["query"].dim() == 3:
        arguments |= {name: arguments[name].transpose(0, 1) for name in ("query", "key")}
    names = ("num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "add_zero_attn", "q_proj_weight", "k_proj_weight")
    return of_function(**arguments, **{name: getattr(module, name) for name in names})


def _added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask in which True forbids, as numbers to add to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(mask, -torch.inf)

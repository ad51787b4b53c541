"""Exact attention on a GPU, behind the same call: FlexAttention for patterns, biases and soft caps, SDPA where there are none.

A bias is computed as a whole matrix here, (1 or B, 1 or H, L, M): FlexAttention reads it by index, and could not differentiate through
a bias made inside its kernel.

Not run on the machines this project is tested on (they have no GPU); kept small enough to check by reading.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...patterns import Causal, Full, Pattern
from .bias import Bias, to_4d


@lru_cache(maxsize=1)
def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def attend_on_gpu(
    q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, scale: float, bias: Bias | None, softcap: float | None
) -> Tensor:
    """Exact attention by PyTorch's GPU kernels; positions are aligned at the end, as everywhere."""
    from torch.nn.attention.flex_attention import create_block_mask

    (L, H), (M, G) = q_BLHK.shape[1:3], k_BMHK.shape[1:3]
    q, k, v = q_BLHK.transpose(1, 2), k_BMHK.transpose(1, 2), v_BMHV.transpose(1, 2)
    aligned = isinstance(pattern, Causal) and L == M
    if bias is None and softcap is None and (aligned or isinstance(pattern, Full)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=aligned, scale=scale, enable_gqa=G != H).transpose(1, 2)
    rule = pattern.fit(L, M)

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return rule.allows(b, h, i + (M - L), j)

    whole = None if bias is None else to_4d(bias.whole(L, M, q.device))

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if whole is None:
            return score
        return score + whole[b if whole.shape[0] > 1 else b * 0, h if whole.shape[1] > 1 else h * 0, i, j]

    blocks = None if isinstance(pattern, Full) else create_block_mask(mask_mod, rule.batch, rule.heads, L, M, device=q.device)
    out: Tensor = _flex()(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale, enable_gqa=G != H)
    return out.transpose(1, 2)

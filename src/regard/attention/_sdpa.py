"""`sdpa`: PyTorch's scaled_dot_product_attention, by its own arguments and order of axes, computed by any mechanism."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import DtypeError, NotSupported, ShapeError
from ..patterns import PatternLike, as_pattern, at_positions, causal, full, keep
from ._base import Attention
from .softmax import SoftmaxAttention


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    pattern: PatternLike = full,
    attention: Attention | None = None,
) -> Tensor:
    """Attention with the arguments of `torch.nn.functional.scaled_dot_product_attention`: (batch, heads, length, size) tensors.

    A query that may attend to nothing gives zeros. `is_causal` lets query i attend to keys 0 … i, as PyTorch's does; the pattern `causal` aligns
    the last query with the last key, which differs where there are more keys than queries.

    Args:
        query: queries (…, heads, L, K).
        key: keys (…, heads, M, K).
        value: values (…, heads, M, V).
        attn_mask: booleans, True = may attend, or floats that are added to the scores; broadcasts to (…, heads, L, M).
        dropout_p: probability of dropping an attention weight, also in evaluation mode: it acts on every call.
        is_causal: query i may attend to keys 0 … i; not together with `attn_mask`.
        scale: factor of the dot products; 1/√K if not given.
        enable_gqa: key and value may have fewer heads, each shared by consecutive query heads.
        pattern: pairs that are allowed, in addition to the mask.
        attention: mechanism that computes it, on its own settings of scale and dropout; softmax attention if not given.

    Shape: query (…, heads, L, K), key (…, heads, M, K), value (…, heads, M, V) → (…, heads, L, V).
    """
    given = (query, key, value)
    if not all(isinstance(x, Tensor) for x in given) or min(x.dim() for x in given) < 2:
        shapes = ", ".join(str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__ for x in given)
        raise ShapeError(f"sdpa takes tensors (batch, heads, length, size), got {shapes}")
    if attn_mask is not None and is_causal:
        raise NotSupported(
            "sdpa: attn_mask together with is_causal=True; pass pattern=causal with the mask, or mask the pairs in attn_mask"
        )
    if attention is not None and (scale is not None or dropout_p):
        raise NotSupported(f"sdpa: scale and dropout_p are for softmax attention; make {type(attention).__name__} with settings of its own")
    mechanism = SoftmaxAttention(scale=scale, dropout=dropout_p).train() if attention is None else attention
    batch = _common_batch(given)
    q_BLHK, k_BMHK, v_BMHV = (_heads_third(x, batch) for x in given)
    L, H, M, G = *q_BLHK.shape[1:3], *k_BMHK.shape[1:3]
    if H != G and not enable_gqa:
        raise ShapeError(f"sdpa: {H} query heads and {G} key heads; with enable_gqa=True key heads are shared")
    allowed, bias = as_pattern(pattern), None
    if is_causal:
        positions = torch.arange(max(L, M), device=query.device)
        allowed = allowed & (causal if L == M else at_positions(causal, positions[:L], positions[:M]))
    if attn_mask is not None:
        mask_BHLM = _mask(attn_mask, batch, (H, L, M))
        if attn_mask.dtype == torch.bool:
            allowed = allowed & keep(mask_BHLM)
        else:
            bias = mask_BHLM
    out_BLHV = mechanism(q_BLHK, k_BMHK, v_BMHV, allowed, bias)
    out_BHLV: Tensor = out_BLHV.transpose(1, 2)
    return out_BHLV.reshape(*batch, *out_BHLV.shape[1 if query.dim() > 2 else 2 :])


def _common_batch(given: tuple[Tensor, Tensor, Tensor]) -> torch.Size:
    """The axes before heads, which broadcast."""
    try:
        return torch.broadcast_shapes(*(x.shape[:-3] for x in given))
    except RuntimeError as wrong:
        shapes = ", ".join(str(tuple(x.shape)) for x in given)
        raise ShapeError(
            f"sdpa: query, key and value have different batches, got {shapes}; expected (batch, heads, length, size)"
        ) from wrong


def _heads_third(x: Tensor, batch: torch.Size) -> Tensor:
    """(…, H, L, K) as x_BLHK; of (L, K), one head."""
    x = x if x.dim() > 2 else x[None]
    return x.expand(*batch, *x.shape[-3:]).reshape(batch.numel(), *x.shape[-3:]).transpose(1, 2)


def _mask(mask: Tensor, batch: torch.Size, sizes: tuple[int, int, int]) -> Tensor:
    """The mask as (B, H, L, M), 1 where it is the same for all rows or heads."""
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise DtypeError(f"sdpa: attn_mask is {mask.dtype}; expected booleans, True = may attend, or floats that are added: mask.bool()")
    shape = (*batch, *sizes)
    try:
        fits = torch.broadcast_shapes(mask.shape, shape) == torch.Size(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(f"sdpa: attn_mask {tuple(mask.shape)} does not broadcast to (batch, heads, queries, keys) = {shape}")
    mask = mask[(None,) * (len(shape) - mask.dim())]
    mask = mask.expand(*mask.shape[:-2], *sizes[1:])
    if mask.shape[:-3].numel() == 1:
        return mask.reshape(1, *mask.shape[-3:])
    return mask.expand(*batch, *mask.shape[-3:]).reshape(batch.numel(), *mask.shape[-3:])

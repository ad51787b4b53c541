"""Masks of transformers as patterns.

A model of transformers describes its mask by a function of indices, composed of a few known ones, and by the padding of the batch; the
attention interface turns them into what its attention takes. Ours takes a pattern: known functions become `causal`, windows, packed
documents and padding, and no L × M tensor is made; an unknown function is evaluated once on all pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from operator import and_
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._extras import extra
from ..errors import PatternNotSupported
from ..patterns import Pattern, at_positions, causal, full, keep, lengths, local_causal, segments, since, window


@dataclass(frozen=True, eq=False)
class Mask:
    """A pattern in place of a mask tensor, which models pass on from where masks are made to their attention layers.

    A model that indexes its mask gets a boolean tensor, which `read_mask` turns into a pattern again where it can.

    Args:
        pattern: the pattern that the mask expresses.
    """

    pattern: Pattern
    shape: tuple[int, int, int, int]  # (batch, 1, queries, keys), as in the mask tensor
    keys: int  # keys that exist: the rest of a cache of fixed size is still empty
    past: bool  # True if keys precede the first query, as in a decoding step

    ndim: ClassVar[int] = 4

    def dense(self) -> Tensor:
        """The boolean mask, True where a query may attend."""
        B, _, L, M = self.shape
        return pad(self.pattern.mask(L, self.keys).expand(B, -1, -1, -1), (0, M - self.keys))

    def __getitem__(self, index: Any) -> Tensor:
        return self.dense()[index]

    def contiguous(self) -> Mask:
        return self


def mask_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | Mask | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: Any,
) -> Mask:
    """The mask function that transformers calls; `q_offset` and `kv_offset` are the positions of the first query and key."""
    masking_utils = transformers_module("masking_utils")
    if isinstance(attention_mask, Mask):
        return attention_mask  # made by generate(), and requested again by the model
    function = mask_function or masking_utils.causal_mask_function
    first, end = int(q_offset), kv_offset + kv_length
    rule, looks_ahead = _recognize(function, first + q_length, q_length == kv_length)
    if not looks_ahead:
        end = min(end, first + q_length)
    if isinstance(rule, window) and first + q_length != end:
        rule = None  # patterns align the last query with the last key
    if rule is None:
        sizes = (batch_size, q_length, end - kv_offset, first, kv_offset)
        dense = masking_utils.sdpa_mask(*sizes, function, attention_mask, allow_is_causal_skip=False, use_vmap=use_vmap, device=device)
        rule = keep(pad(dense, (kv_offset, 0)))
    elif attention_mask is not None:
        rule = rule & padding(pad(attention_mask.bool(), (0, max(0, end - attention_mask.shape[1])))[:, :end])
    if kv_offset:
        rule = at_positions(rule, torch.arange(first, first + q_length, device=device), torch.arange(kv_offset, end, device=device))
    return Mask(rule, (batch_size, 1, q_length, kv_length), end - kv_offset, first > 0)


def read_mask(mask: Tensor | Mask | None, queries: int, keys: int, is_causal: bool) -> tuple[Mask, Tensor | None]:
    """The mask that an attention layer receives, as a pattern, and a bias on the scores.

    None means what it means to SDPA: full, or causal where the layer is. A tensor is (B, 1 or H, L, M): True where a query may attend,
    or numbers to add to scores, of which the lowest of their dtype forbid.
    """
    if isinstance(mask, Mask):
        return mask, None
    if mask is None:
        if is_causal and 1 < queries != keys:
            raise PatternNotSupported(
                f"{queries} queries over {keys} keys, causal, without a mask: the positions of the queries are unknown; pass attention_mask="
            )
        return Mask(causal if is_causal else full, (1, 1, queries, keys), keys, is_causal and queries < keys), None
    if mask.dim() != 4 or mask.shape[2] not in (1, queries) or mask.shape[3] < keys:
        raise PatternNotSupported(f"the mask is {tuple(mask.shape)}; expected (batch, 1 or heads, {queries} queries, {keys} keys)")
    mask, bias = mask[..., :keys], None
    if mask.dtype != torch.bool:
        if not mask.dtype.is_floating_point:
            raise PatternNotSupported(f"the mask is {mask.dtype}; expected bool, or floating-point numbers to add to scores")
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        if bool((mask.masked_fill(hidden, 0) != 0).any()):
            bias = mask.masked_fill(hidden, 0)
        mask = ~hidden
    return _recognize_dense(mask.expand(-1, -1, queries, -1), is_causal), bias


def padding(real_BM: Tensor) -> Pattern:
    """The simplest pattern that leaves out padding keys."""
    M = real_BM.shape[1]
    count_B = real_BM.sum(1)
    position = torch.arange(M, device=real_BM.device)
    stop_B = torch.where(real_BM, position + 1, 0).amax(1) if M else count_B
    first_B = stop_B - count_B
    if not bool(((position >= first_B[:, None]) & (position < stop_B[:, None])).eq(real_BM).all()):
        return keep(real_BM[:, None, None])  # with gaps
    rule: Pattern = full
    if bool((first_B > 0).any()):
        rule = rule & since(first_B)
    if bool((stop_B < M).any()):
        rule = rule & lengths(stop_B)
    return rule


def _recognize(function: Callable[..., Any], length: int, whole: bool) -> tuple[Pattern | None, bool]:
    """A mask function of transformers as a pattern over `length` positions, None if unknown; and whether queries may attend ahead.

    Functions are compared with those that transformers makes, by their code, and their one closure variable is their parameter: transformers
    hands over nothing but the composed function, and evaluating it on all pairs would cost L × M per call. What a later version
    does differently is unknown here, hence evaluated, and still exact.
    """
    masks = transformers_module("masking_utils")
    parts, rules = _conjuncts(function), list[Pattern]()
    looks_ahead = masks.causal_mask_function not in parts
    for part in parts:
        if part in (masks.causal_mask_function, masks.bidirectional_mask_function):
            continue
        if not looks_ahead and isinstance(size := _closure_value(part, masks.sliding_window_overlay(0)), int):
            if size < length:  # else nothing is masked yet
                rules.append(local_causal(size - 1))
        elif isinstance(size := _closure_value(part, masks.sliding_window_bidirectional_overlay(0)), int):
            rules.append(window(size))
        elif whole and isinstance(ids := _closure_value(part, masks.packed_sequence_mask_function(None)), Tensor):
            rules.append(segments(ids))
        else:
            return None, looks_ahead
    if not looks_ahead and not any(isinstance(rule, local_causal) for rule in rules):
        rules.insert(0, causal)
    return reduce(and_, rules, full), looks_ahead


def _conjuncts(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions that must all allow a pair."""
    functions = _closure_value(function, transformers_module("masking_utils").and_masks())
    return [function] if functions is None else [part for each in functions for part in _conjuncts(each)]


def _closure_value(function: Callable[..., Any], reference: FunctionType) -> Any:
    """The only closure variable of a function that has the same code as `reference`; None for another function."""
    if not isinstance(function, FunctionType) or function.__code__ is not reference.__code__:
        return None
    cells = function.__closure__ or ()
    return cells[0].cell_contents if len(cells) == 1 else None


def _recognize_dense(mask_BHLM: Tensor, is_causal: bool) -> Mask:
    """A boolean mask as `full` or `causal` with padding, if it is one of them; else as `keep(mask)`."""
    B, H, L, M = mask_BHLM.shape
    shape = (B, 1, L, M)
    if H == 1 and L:
        last_BM = mask_BHLM[:, 0, -1]
        if L > 1 and bool((mask_BHLM == last_BM[:, None, None]).all()):
            return Mask(padding(last_BM), shape, M, False)
        keys = max(_end(last_BM), L) if L < M else M
        behind = causal.mask(L, keys, mask_BHLM.device) & last_BM[:, None, None, :keys]
        if (L > 1 or is_causal) and bool((mask_BHLM[..., :keys] == behind).all()) and not bool(mask_BHLM[..., keys:].any()):
            return Mask(causal & padding(last_BM[:, :keys]), shape, keys, keys > L)
        if L == 1:
            return Mask(padding(last_BM), shape, M, False)
    return Mask(keep(mask_BHLM), shape, M, False)


def _end(seen_BM: Tensor) -> int:
    """One more than the last key that any row attends to."""
    seen_M = seen_BM.any(0)
    return int(torch.where(seen_M, torch.arange(1, len(seen_M) + 1, device=seen_M.device), 0).max()) if len(seen_M) else 0


def transformers_module(name: str) -> Any:
    """A module of transformers, imported when needed."""
    with extra("interop"):
        module = import_module(f"transformers.{name}")
    return module

"""Masks of transformers as patterns.

Models of transformers say where they may look by a function of indices, composed of a few known ones, and by the padding of the batch; an
interface turns the two into whatever its attention wants. Ours wants a pattern. The known functions are recognised, so `causal`,
windows, packed documents and padding stay what they are, and nothing of size L × M is made; an unknown one is asked about every pair, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from operator import and_
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import NotSupported, PatternNotSupported
from ..patterns import Pattern, causal, full, keep, lengths, local_causal, placed, segments, since, window


@dataclass(frozen=True, eq=False)
class Mask:
    """A pattern in the place of a mask: models hand it on from where masks are made to their attentions.

    A model that cuts a piece out of its mask gets that piece as booleans, and the attention reads what it can in them.
    """

    pattern: Pattern
    shape: tuple[int, int, int, int]  # (batch, 1, queries, keys) as the model counts them
    keys: int  # the first so many keys that anyone may see: in a cache of fixed size, the rest is still empty
    past: bool  # keys came before the first query: one sequence that goes on

    ndim: ClassVar[int] = 4

    def dense(self) -> Tensor:
        """The booleans, True = may look."""
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
    """What transformers calls to make a mask; `q_offset` and `kv_offset` are the positions of the first query and key."""
    masking_utils = transformers("masking_utils")
    if isinstance(attention_mask, Mask):
        return attention_mask  # generate() made it, and the model asks again
    first, end, function = int(q_offset), kv_offset + kv_length, mask_function or masking_utils.causal_mask_function
    rule, ahead = _rule(function, first + q_length, q_length == kv_length)
    if not ahead:
        end = min(end, first + q_length)
    if isinstance(rule, window) and first + q_length != end:
        rule = None  # a rule of positions, which are taken from the end, where the last query does not stand
    if rule is None:
        sizes = (batch_size, q_length, end - kv_offset, first, kv_offset)
        whole = masking_utils.sdpa_mask(*sizes, function, attention_mask, allow_is_causal_skip=False, use_vmap=use_vmap, device=device)
        rule = keep(pad(whole, (kv_offset, 0)))
    elif attention_mask is not None:
        rule = rule & padding(pad(attention_mask.bool(), (0, max(0, end - attention_mask.shape[1])))[:, :end])
    if kv_offset:
        rule = placed(rule, torch.arange(first, first + q_length, device=device), torch.arange(kv_offset, end, device=device))
    return Mask(rule, (batch_size, 1, q_length, kv_length), end - kv_offset, first > 0)


def read(mask: Tensor | Mask | None, queries: int, keys: int, is_causal: bool) -> tuple[Mask, Tensor | None]:
    """What an attention is handed, as a pattern, and what is to be added to scores.

    None means what it means to SDPA: all, or causal where the layer says so. A tensor is (B, 1 or H, L, M): True = may look, or numbers
    to add, of which the lowest of their type forbid.
    """
    if isinstance(mask, Mask):
        return mask, None
    if mask is None:
        if is_causal and 1 < queries != keys:
            raise PatternNotSupported(
                f"{queries} queries over {keys} keys, causally, and no mask that says where the queries stand; give attention_mask="
            )
        return Mask(causal if is_causal else full, (1, 1, queries, keys), keys, is_causal and queries < keys), None
    if mask.dim() != 4 or mask.shape[2] not in (1, queries) or mask.shape[3] < keys:
        raise PatternNotSupported(
            f"a mask is (batch, 1 or heads, queries, keys), here of {queries} queries and {keys} keys, not {tuple(mask.shape)}"
        )
    mask, bias = mask[..., :keys], None
    if mask.dtype != torch.bool:
        if not mask.dtype.is_floating_point:
            raise PatternNotSupported(f"a mask of (batch, heads, queries, keys) is boolean or of numbers to add, not {mask.dtype}")
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        if bool((mask.masked_fill(hidden, 0) != 0).any()):
            bias = mask.masked_fill(hidden, 0)
        mask = ~hidden
    return _recognised(mask.expand(-1, -1, queries, -1), is_causal), bias


def padding(real_BM: Tensor) -> Pattern:
    """Which keys are real, as the simplest rule that says so."""
    M = real_BM.shape[1]
    count_B = real_BM.sum(1)
    place = torch.arange(M, device=real_BM.device)
    stop_B = torch.where(real_BM, place + 1, 0).amax(1) if M else count_B
    first_B = stop_B - count_B
    if not bool(((place >= first_B[:, None]) & (place < stop_B[:, None])).eq(real_BM).all()):
        return keep(real_BM[:, None, None])  # with gaps
    rule: Pattern = full
    if bool((first_B > 0).any()):
        rule = rule & since(first_B)
    if bool((stop_B < M).any()):
        rule = rule & lengths(stop_B)
    return rule


def _rule(function: Callable[..., Any], length: int, whole: bool) -> tuple[Pattern | None, bool]:
    """A function of transformers as a pattern over `length` positions, None if it is not known; and whether anyone looks ahead."""
    masking_utils = transformers("masking_utils")
    parts, rules = _parts(function), list[Pattern]()
    ahead = masking_utils.causal_mask_function not in parts
    for part in parts:
        if getattr(part, "__module__", "") != masking_utils.__name__ or not inspect.isfunction(part):
            return None, ahead
        match part.__qualname__.partition(".")[0], inspect.getclosurevars(part).nonlocals:
            case (("causal_mask_function" | "bidirectional_mask_function"), _):
                pass
            case "sliding_window_overlay", {"sliding_window": int(size)} if not ahead:
                if size < length:  # else it hides nothing yet
                    rules.append(local_causal(size - 1))
            case "sliding_window_bidirectional_overlay", {"sliding_window": int(size)}:
                rules.append(window(size))
            case "packed_sequence_mask_function", {"packed_sequence_mask": Tensor() as ids} if whole:
                rules.append(segments(ids))
            case _:
                return None, ahead
    if not ahead and not any(isinstance(rule, local_causal) for rule in rules):
        rules.insert(0, causal)
    return reduce(and_, rules, full), ahead


def _parts(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions that must all allow a pair."""
    if getattr(function, "__qualname__", "") != "and_masks.<locals>.and_mask":
        return [function]
    return [part for each in inspect.getclosurevars(function).nonlocals["mask_functions"] for part in _parts(each)]


def _recognised(mask_BHLM: Tensor, is_causal: bool) -> Mask:
    """Booleans as `full` or `causal` with padding, if that is what they are."""
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
    """One more than the last key that any row sees."""
    seen_M = seen_BM.any(0)
    return int(torch.where(seen_M, torch.arange(1, len(seen_M) + 1, device=seen_M.device), 0).max()) if len(seen_M) else 0


def transformers(part: str) -> Any:
    """A module of transformers, or one sentence on how to get it."""
    try:
        return import_module(f"transformers.{part}")
    except ImportError as error:
        raise NotSupported(
            "transformers is not installed, or too old to take attentions of others; pip install 'regard[interop]'"
        ) from error

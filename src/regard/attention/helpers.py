"""Building blocks of mechanisms, inside this package and outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..kernels import float32_or_wider as float32_or_wider
from ..kernels import no_autocast as no_autocast
from ..patterns import Both, Causal, Full, Pattern, at_positions, from_row_start, lengths, since

__all__ = [
    "allowed_counts",
    "average",
    "by_rows",
    "conjuncts",
    "float32_or_wider",
    "force_row_chunks",
    "hide_keys",
    "is_causal",
    "last_tokens",
    "no_autocast",
    "pattern_rows",
    "real_lengths",
    "rule_name",
    "seeded_generator",
    "share_heads",
    "softmax_where",
    "uniform_parameter",
]

# numbers per chunk of query rows, between scores and average: 16 MB in float32
_row_chunk: ContextVar[int] = ContextVar("row_chunk", default=2**22)


def average(weights_BHLM: Tensor, v_BMHV: Tensor) -> Tensor:
    """The weighted average of values, out_BLHV: what every mechanism computes in the end."""
    v_BMHV = share_heads(v_BMHV, weights_BHLM.shape[1])
    return torch.einsum("bhlm,bmhv->blhv", weights_BHLM.to(v_BMHV.dtype), v_BMHV)


def share_heads(k_BMHK: Tensor, heads: int) -> Tensor:
    """Keys or values with as many heads as the queries: head h of H reads head ⌊h·G/H⌋ of G."""
    return k_BMHK if k_BMHK.shape[2] == heads else k_BMHK.repeat_interleave(heads // k_BMHK.shape[2], 2)


def softmax_where(scores_BHLM: Tensor, mask_BHLM: Tensor, sink_H: Tensor | None = None) -> Tensor:
    """Softmax over the allowed keys; a row without any is zeros, with finite gradients. `sink_H`: extra logits without a value."""
    scores_BHLM = scores_BHLM.masked_fill(~mask_BHLM, -torch.inf)
    top = scores_BHLM.detach().amax(-1, keepdim=True) if scores_BHLM.shape[-1] else scores_BHLM.new_zeros(*scores_BHLM.shape[:-1], 1)
    sink = None if sink_H is None else sink_H[:, None, None].to(scores_BHLM.dtype)
    if sink is not None:
        top = torch.maximum(top, sink.detach())
    top = top.masked_fill(top == -torch.inf, 0)
    e = (scores_BHLM - top).exp()
    z = e.sum(-1, keepdim=True)
    if sink is not None:
        z = z + (sink - top).exp()
    return e / z.masked_fill(z == 0, 1)


def by_rows(compute: Callable[[Tensor], Tensor], q_BLHK: Tensor, v_BMHV: Tensor, per_row: int) -> Tensor:
    """out_BLHV from `compute(rows)`, for as many query rows at a time as fit if each forms `per_row` numbers per batch row.

    The result is allocated first and chunks are written into it: small results allocated between the large temporaries kept the heap
    from shrinking (gaussian_window of 4,096 tokens: 1.8 GB instead of 0.1 GB). In training, chunks are recomputed in the backward pass.
    """
    B, L, H = q_BLHK.shape[:3]
    rows_per_chunk = max(1, _row_chunk.get() // max(1, B * per_row))
    if rows_per_chunk >= L:
        return compute(torch.arange(L, device=q_BLHK.device))
    out_BLHV = v_BMHV.new_empty(B, L, H, v_BMHV.shape[-1])
    for rows in torch.arange(L, device=q_BLHK.device).split(rows_per_chunk):
        chunk = compute(rows) if not torch.is_grad_enabled() else checkpoint(compute, rows, use_reentrant=False, preserve_rng_state=False)
        out_BLHV[:, int(rows[0]) : int(rows[-1]) + 1] = chunk
    return out_BLHV


@contextmanager
def force_row_chunks(numbers: int) -> Iterator[None]:
    """Within the block, `by_rows` lets a chunk of query rows form this many numbers: for tests, as `kernels.force` is."""
    token = _row_chunk.set(numbers)
    try:
        yield
    finally:
        _row_chunk.reset(token)


# -- patterns --------------------------------------------------------------------------------------------------------


def conjuncts(pattern: Pattern) -> list[Pattern]:
    """The rules that must all allow a pair."""
    if isinstance(pattern, at_positions):
        return conjuncts(pattern.rule)
    if isinstance(pattern, from_row_start):  # rules on key positions count from the start of each row
        rules = conjuncts(pattern.rule)
        return [
            since(torch.tensor(pattern.first)),
            *(r if isinstance(r, Full | Causal) else from_row_start(r, pattern.first) for r in rules),
        ]
    return [*conjuncts(pattern.left), *conjuncts(pattern.right)] if isinstance(pattern, Both) else [pattern]


def pattern_rows(pattern: Pattern, rows: Tensor, queries: int, keys: int) -> Pattern:
    """The pattern of some of the queries only."""
    if isinstance(pattern, Full):
        return pattern
    return at_positions(pattern.fit(queries, keys), rows + (keys - queries), torch.arange(keys, device=rows.device))


def rule_name(pattern: Pattern) -> str:
    """The name of a rule as `facts.patterns` lists it."""
    if isinstance(pattern, from_row_start):
        return rule_name(pattern.rule)
    return {Full: "full", Causal: "causal"}.get(type(pattern), type(pattern).__name__)


def is_causal(pattern: Pattern) -> bool:
    """True if `causal` is one of its rules."""
    return any(isinstance(rule, Causal) for rule in conjuncts(pattern))


def allowed_counts(pattern: Pattern, queries: int, keys: int, device: torch.device) -> Tensor:
    """Number of keys that each query may attend to, (1 or B, 1 or H, L), computed one chunk of rows at a time."""
    if isinstance(pattern, Full | Causal):
        index = torch.arange(keys - queries, keys, device=device)
        return (torch.full_like(index, keys) if isinstance(pattern, Full) else (index + 1).clamp(0, keys))[None, None]
    step = max(1, _row_chunk.get() // max(1, keys * pattern.heads * pattern.batch))
    rows = torch.arange(queries, device=device).split(step)
    return torch.cat([pattern_rows(pattern, some, queries, keys).mask(len(some), keys, device).sum(-1) for some in rows], -1)


def hide_keys(x_BMHF: Tensor, allowed_BM: Tensor | None, value: float = 0.0) -> Tensor:
    """Features of keys that are not allowed become `value`."""
    return x_BMHF if allowed_BM is None else x_BMHF.masked_fill(~allowed_BM[..., None, None], value)


def real_lengths(pattern: Pattern, length: int, device: torch.device) -> Tensor:
    """The number of positions per batch row that are not padding, (1 or B,), by the `lengths` rules of the pattern."""
    n_B = torch.full((1,), length, device=device)
    for rule in conjuncts(pattern):
        if isinstance(rule, lengths):
            n_B = torch.minimum(n_B, rule.keys.to(device))
    return n_B


# -- tensors ---------------------------------------------------------------------------------------------------------


def last_tokens(x_BLHF: Tensor, length: int) -> Tensor:
    """The last `length` tokens, zero-padded at the front if there are fewer: positions are aligned at the end."""
    more = length - x_BLHF.shape[1]
    return F.pad(x_BLHF, (0, 0, 0, 0, more, 0)) if more else x_BLHF


def uniform_parameter(*shape: int, fan: int) -> nn.Parameter:
    """A parameter drawn uniformly from ±1/√fan, as in PyTorch's linear layers."""
    return nn.Parameter(torch.empty(*shape).uniform_(-(fan**-0.5), fan**-0.5))


def seeded_generator(seed: int | None) -> torch.Generator:
    """A generator on the CPU with this seed, or with one drawn from PyTorch's global generator."""
    return torch.Generator().manual_seed(int(torch.randint(2**31, (), device="cpu")) if seed is None else seed)

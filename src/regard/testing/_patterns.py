"""Checks of a pattern: an object, or a class with settings, as in `regard check "my_module:LogSparse(base=2)"`."""

from __future__ import annotations

from typing import Any

import torch

from ..attention import SoftmaxAttention
from ..kernels import force
from ..patterns import Pattern, block_summary, causal
from ._subject import ContractError

SIZES = ((1, 1), (7, 7), (13, 13), (5, 13))  # queries and keys


def built(pattern: Any, **settings: Any) -> Pattern:
    found: Pattern = pattern(**settings) if isinstance(pattern, type) else pattern
    return found


def is_a_mask(pattern: Any, **settings: Any) -> None:
    for L, M in SIZES:
        mask = built(pattern, **settings).mask(L, M, torch.device("cpu"))
        if mask.dtype != torch.bool or mask.shape[-2:] != (L, M):
            raise ContractError(
                f"its mask for {L} queries and {M} keys is {tuple(mask.shape)}, {mask.dtype}; `allows` must broadcast and return booleans"
            )


def combines(pattern: Any, **settings: Any) -> None:
    one = built(pattern, **settings)
    for L, M in SIZES:
        a, b = (rule.mask(L, M, torch.device("cpu")) for rule in (one, causal))
        for name, rule, expected in (("&", one & causal, a & b), ("|", one | causal, a | b), ("~", ~one, ~a)):
            if not torch.equal(rule.mask(L, M, torch.device("cpu")), expected.expand_as(rule.mask(L, M, torch.device("cpu")))):
                raise ContractError(f"combined by {name} it is not what its own mask says; let `allows` depend on its arguments alone")


def summarises_blocks(pattern: Any, **settings: Any) -> None:
    one = built(pattern, **settings)
    for L, M in SIZES:
        for size in (2, 4, 8):
            mask = one.mask(L, M, torch.device("cpu"))
            for at, row in enumerate(block_summary(one, L, M, size).unbind(2)):
                for to, cell in enumerate(row.unbind(2)):
                    part = mask[:, :, at * size : (at + 1) * size, to * size : (to + 1) * size].flatten(2)
                    if ((cell == 0) & part.any(-1)).any() or ((cell == 2) & ~part.all(-1)).any():
                        raise ContractError(
                            f"its summary in blocks of {size} calls a block empty or full that is not; correct `bounds`, or leave it out"
                        )


def attends(pattern: Any, **settings: Any) -> None:
    one, attention = built(pattern, **settings), SoftmaxAttention()
    torch.manual_seed(0)
    for L, M in SIZES:
        heads = max(one.heads, 1) if one.heads > 1 else 2
        rows = max(one.batch, 1) if one.batch > 1 else 2
        q, k, v = (torch.randn(rows, n, heads, 4, dtype=torch.float64, requires_grad=True) for n in (L, M, M))
        slow = torch.einsum("bhlm,bmhv->blhv", attention.weights(q, k, one), v)
        fast = attention(q, k, v, one)
        with force("tiles"):
            tiled = attention(q, k, v, one)
            if not torch.allclose(fast, slow, atol=1e-10) or not torch.allclose(tiled, slow, atol=1e-10):
                raise ContractError("exact attention under it differs from its own mask; its summary of blocks is wrong")
        if not all(torch.isfinite(g).all() for g in torch.autograd.grad(fast.sum(), (q, k, v))):
            raise ContractError("gradients under it are not finite")


def prints(pattern: Any, **settings: Any) -> None:
    one = built(pattern, **settings)
    if not str(one) or "object at" in str(one) or not one.draw(5):
        raise ContractError("it has no name to print; make it a frozen dataclass, whose fields are its arguments")


CHECKS = {"mask": is_a_mask, "combine": combines, "blocks": summarises_blocks, "attention": attends, "name": prints}

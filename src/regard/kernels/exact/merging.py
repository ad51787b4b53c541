"""Merging partial results: attention over disjoint sets of keys, combined exactly.

    lse = log Σ_r exp(lse_r)        out = Σ_r exp(lse_r − lse) · out_r

Used for windows with global tokens, rows of more keys than a tile takes, and caches read in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(out_BLHV, lse_BHL) over all keys, from those of each part. Differentiable in both.

    Args:
        parts: output and log-sum-exp over each set of keys, as `attend(…, with_lse=True)` returns them.

    Shape: (out_BLHV, lse_BHL) of each part → out_BLHV, lse_BHL.
    """
    each_RBHL = torch.stack([lse for _, lse in parts])
    lse_BHL = each_RBHL.logsumexp(0)
    empty = lse_BHL == -torch.inf  # a row that attends to nothing in all parts: weights 0, not NaN
    weights_RBLH = (each_RBHL - lse_BHL.masked_fill(empty, 0)).exp().transpose(2, 3)
    out_BLHV = torch.stack([out for out, _ in parts])
    return (weights_RBLH.unsqueeze(-1) * out_BLHV).sum(0), lse_BHL


def merge_into(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> None:
    """Merge two parts, (…, V) and (…), in place and without gradients."""
    whole = torch.logaddexp(lse, more_lse)
    finite = whole.masked_fill(whole == -torch.inf, 0)
    out.mul_((lse - finite).exp_().unsqueeze(-1)).add_(more_out * (more_lse - finite).exp_().unsqueeze(-1))
    lse.copy_(whole)

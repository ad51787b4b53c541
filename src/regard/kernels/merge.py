"""Merging partial results: attention over disjoint sets of keys, put together exactly.

    lse = log Σ_r exp(lse_r)        out = Σ_r exp(lse_r − lse) · out_r

The one primitive behind windows with global tokens, hashing rounds, sinks, and caches read in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """From (out_BLHV, lse_BHL) of each part to those of the whole. Differentiable in both."""
    each_RBHL = torch.stack([lse for _, lse in parts])
    lse_BHL = each_RBHL.logsumexp(0)
    empty = lse_BHL == -torch.inf  # no part saw anything: weights 0, not NaN
    weights_RBLH = (each_RBHL - lse_BHL.masked_fill(empty, 0)).exp().transpose(2, 3)
    out_BLHV = torch.stack([out for out, _ in parts])
    return (weights_RBLH.unsqueeze(-1) * out_BLHV).sum(0), lse_BHL


def merge_into(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> None:
    """The same for two parts, (…, V) and (…), in place and without gradients."""
    whole = torch.logaddexp(lse, more_lse)
    finite = whole.masked_fill(whole == -torch.inf, 0)
    out.mul_((lse - finite).exp_().unsqueeze(-1)).add_(more_out * (more_lse - finite).exp_().unsqueeze(-1))
    lse.copy_(whole)

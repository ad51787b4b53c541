"""y = x Wᵀ + b for a few rows: most of what a step of decoding does.

For two to six rows PyTorch's CPU product of x with Wᵀ takes twice as long as that of W with xᵀ, which is the same numbers lying the
other way. All weights of a step of a 3-layer decoder of width 256 with 8,000 words, 4 rows, two AVX2 threads: 2.5 ms and 1.3 ms; of
four layers of width 768 12.2 and 6.6. For one row and from eight on there is nothing to gain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = range(2, 7)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b."""
    if torch.is_grad_enabled() or not x.is_cpu or x.shape[:-1].numel() not in FEW or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    x_KR = x.reshape(-1, x.shape[-1]).t()
    y_NR = torch.mm(weight, x_KR) if bias is None else torch.addmm(bias[:, None], weight, x_KR)
    return y_NR.t().contiguous().view(*x.shape[:-1], len(weight))  # who reads it next wants features side by side


def applied(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x), by `linear` if the layer is a plain one that nobody watches."""
    if torch.is_grad_enabled() or type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return layer(x)  # type: ignore[no-any-return]
    return linear(x, layer.weight, layer.bias)

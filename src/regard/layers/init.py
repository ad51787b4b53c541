r"""Initialisation of parameters. Constructors use PyTorch's defaults; a model then calls one of these functions once.

| parameter | `init_xavier` (2017) | `init_gpt` (GPT-2) | `init_truncated` (BERT, ViT) |
|---|---|---|---|
| matrix of a linear layer | uniform, ±√(6 / (in + out)) | normal, 0.02 | normal, 0.02, truncated at two standard deviations |
| the last matrix of a residual branch | the same | normal, 0.02 / √(2·depth) | the same |
| q, k and v | each as a matrix of its own | | |
| embedding of tokens, positions, distances | normal, 1/√width | normal, 0.02 | like matrices |
| biases | 0 | 0 | 0 |
| gains and shifts of norms | 1 and 0 | 1 and 0 | 1 and 0 |
| row of the padding token | 0 | 0 | 0 |

Why. Xavier keeps the variance of features and gradients constant through a layer; the fused q, k, v must be treated separately, or
the fan-out counts three times and all start too small. Embeddings start at 1/√width because the 2017 model multiplies them by √width
and reuses them as output projection. A residual stream sums 2·depth terms, so GPT-2 scales each by 1/√(2·depth). All other
parameters (vectors u and w of Transformer-XL, those of mechanisms) keep the values of their constructors.

Paper: Glorot & Bengio 2010; Vaswani et al. 2017, arXiv:1706.03762; Radford et al. 2019, section 2.3; Devlin et al. 2018,
       arXiv:1810.04805.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from .multihead import MultiHead
from .positionwise import FeedForward, RMSNorm

Fill = Callable[[Tensor], object]


def init_xavier(model: nn.Module) -> None:
    """The initialisation of the 2017 transformer.

    Args:
        model: model to initialise, in place.
    """
    _fill(model, nn.init.xavier_uniform_, lambda table: nn.init.normal_(table, std=table.shape[1] ** -0.5))


def init_gpt(model: nn.Module, depth: int, std: float = 0.02) -> None:
    """The initialisation of GPT-2, for a stack of `depth` blocks.

    Args:
        model: model to initialise, in place.
        depth: number of blocks, by which output projections are scaled down.
        std: standard deviation of matrices and embeddings.
    """
    normal = partial(nn.init.normal_, std=std)
    _fill(model, normal, normal)
    for part in model.modules():
        last = part.out if isinstance(part, MultiHead) else part.down if isinstance(part, FeedForward) else None
        if last is not None:
            nn.init.normal_(last.weight, std=std / (2 * depth) ** 0.5)


def init_truncated(model: nn.Module, std: float = 0.02) -> None:
    """The initialisation of BERT and the vision transformer.

    Args:
        model: model to initialise, in place.
        std: standard deviation of the truncated normal distribution.
    """
    normal = partial(nn.init.trunc_normal_, std=std, a=-2 * std, b=2 * std)
    _fill(model, normal, normal)


@torch.no_grad()
def _fill(model: nn.Module, matrix: Fill, table: Fill) -> None:
    for part in model.modules():
        if isinstance(part, nn.Linear):
            matrix(part.weight)
            if part.bias is not None:
                part.bias.zero_()
        elif isinstance(part, nn.Embedding):
            table(part.weight)
            if part.padding_idx is not None:
                part.weight[part.padding_idx].zero_()
        elif isinstance(part, nn.LayerNorm | RMSNorm):
            if part.weight is not None:
                part.weight.fill_(1)
            if isinstance(part, nn.LayerNorm) and part.bias is not None:
                part.bias.zero_()
    for part in model.modules():  # afterwards: above, fused projections were filled as if they were one matrix
        if isinstance(part, MultiHead):
            for projection in part.projections():
                matrix(projection)

"""regard: the whole lineage of attention behind one contract.

Attention is one idea: a weighted average of values, the weights depending on a query. Every mechanism here answers two
questions with the same tensors, and the answers must agree:

    weights(q, k, pattern)       the definition: who looks at whom, and how much
    forward(q, k, v, pattern)    the average, the fast way

    >>> import torch
    >>> from regard import SoftmaxAttention, causal, tokens, window
    >>> q, k, v = torch.randn(3, 2, 64, 4, 16)  # q, k and v: 2 sequences of 64 tokens, 4 heads of size 16
    >>> attention, pattern = SoftmaxAttention(), causal & (window(8) | tokens(0))
    >>> out = attention(q, k, v, pattern)
    >>> out.shape
    torch.Size([2, 64, 4, 16])
    >>> torch.allclose(out, torch.einsum("bhlm,bmhv->blhv", attention.weights(q, k, pattern), v), atol=1e-5)
    True

Letters at the end of a tensor's name are its axes, in order; one legend for the whole library:

    B  batch                    D  model width               F  feed-forward width
    L  query length             H  heads                     N  vocabulary or classes
    M  memory (key) length      K  key size per head         C  chunk
                                V  value size per head

So q_BLHK holds queries, weights_BHLM weights, x_BLD what goes from layer to layer.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import catalogue, errors, kernels, patterns
from .attention import *  # noqa: F403  the list of mechanisms is kept once, in attention/__init__.py
from .attention import __all__ as _mechanisms
from .errors import RegardError
from .layers import Block, FeedForward, MultiHead
from .look import Maps, capture
from .patterns import (
    Pattern,
    block,
    block_memory,
    block_window,
    causal,
    dilated,
    edges,
    from_tokens,
    full,
    grid_memory,
    grid_window,
    keep,
    lengths,
    local_causal,
    per_head,
    random_blocks,
    same_column,
    same_row,
    segments,
    since,
    stride,
    summary,
    to_tokens,
    token_blocks,
    tokens,
    window,
)

if _TYPE_CHECKING:
    from .models import Model as _Model

__version__ = "0.1.0"


def load(folder: _Path | str) -> "_Model":
    """The model of a run, or of a directory of transformers (config.json and safetensors), with its weights, ready to use."""
    from .interop import load as load_  # reads files of several libraries, which takes time to import

    return load_(folder)


__all__ = [
    "Block",
    "FeedForward",
    "Maps",
    "MultiHead",
    "Pattern",
    "RegardError",
    "__version__",
    "block",
    "block_memory",
    "block_window",
    "capture",
    "catalogue",
    "causal",
    "dilated",
    "edges",
    "errors",
    "from_tokens",
    "full",
    "grid_memory",
    "grid_window",
    "keep",
    "kernels",
    "lengths",
    "load",
    "local_causal",
    "patterns",
    "per_head",
    "random_blocks",
    "same_column",
    "same_row",
    "segments",
    "since",
    "stride",
    "summary",
    "to_tokens",
    "token_blocks",
    "tokens",
    "window",
]
__all__ += _mechanisms

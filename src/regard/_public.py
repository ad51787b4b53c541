"""Everything `import regard` offers. A module of its own, so that PyTorch, which takes seconds to import, is imported when a name is first used."""

from __future__ import annotations

from . import catalogue, errors, kernels, patterns
from .attention import *  # noqa: F403  the list of mechanisms is kept once, in attention/__init__.py
from .attention import __all__ as _mechanisms  # type: ignore[attr-defined]  # for type checkers there is none
from .attention import sdpa
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

__all__ = [
    "Block",
    "FeedForward",
    "Maps",
    "MultiHead",
    "Pattern",
    "RegardError",
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
    "local_causal",
    "patterns",
    "per_head",
    "random_blocks",
    "same_column",
    "same_row",
    "sdpa",
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

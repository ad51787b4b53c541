"""Where a query may attend: rules on (query position i, key position j) that combine with & | ~.

    >>> from regard import causal, window, tokens
    >>> causal & (window(2) | tokens(0))
    causal & (window(2) | tokens(0))
    >>> print((causal & (window(2) | tokens(0))).draw(6))
    ■·····
    ■■····
    ■■■···
    ■■■■··
    ■·■■■·
    ■··■■■

A pattern says *where* a query may attend, never *how much* (that is a mechanism) nor *how it is computed* (that is a kernel). True
means *may attend*. Each rule has two forms, which must agree:

- `allows(b, h, i, j)`: the rule itself, on broadcasting index tensors (batch row, head, query position, key position);
- `bounds(b, h, i, j)`: the rule on rectangles i = [first, last] × j = [first, last], answering "is any pair allowed?"
  (`some`; may err towards True) and "are all pairs allowed?" (`every`; may err towards False). Combined by three-valued logic, it
  tells empty, full and partial blocks apart without visiting single pairs: see `block_summary`.

Positions are aligned at the end: with M keys, the last of L queries is at position M − 1. So `causal` means the same for a whole
sequence, for a decoding step with a cache, and for a block of new tokens.
"""

from ._base import Both, Bounds, Either, Full, Not, Pattern, Span, block_summary, full, is_static, per_head, row_bounds, spans
from ._parse import parse
from .blocks import (
    block,
    block_memory,
    block_window,
    grid_memory,
    grid_window,
    listed_blocks,
    random_blocks,
    same_column,
    same_row,
    token_blocks,
)
from .distance import Causal, causal, dilated, local_causal, stride, window
from .global_tokens import behind, from_tokens, summary, to_tokens, tokens
from .input_dependent import at_positions, edges, from_row_start, keep, lengths, segments, since

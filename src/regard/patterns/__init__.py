"""Patterns, where a query may attend: rules on (query position i, key position j) that combine with & | ~.

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

from ._base import Both as Both
from ._base import Bounds as Bounds
from ._base import Either as Either
from ._base import Full as Full
from ._base import Not as Not
from ._base import Pairs as Pairs
from ._base import Pattern as Pattern
from ._base import PatternLike as PatternLike
from ._base import Span as Span
from ._base import as_pattern as as_pattern
from ._base import block_summary as block_summary
from ._base import full as full
from ._base import is_static as is_static
from ._base import per_head as per_head
from ._base import row_bounds as row_bounds
from ._base import spans as spans
from ._parse import RULES as RULES
from ._parse import VALUES as VALUES
from ._parse import parse as parse
from .blocks import block as block
from .blocks import block_memory as block_memory
from .blocks import block_window as block_window
from .blocks import grid_memory as grid_memory
from .blocks import grid_window as grid_window
from .blocks import listed_blocks as listed_blocks
from .blocks import random_blocks as random_blocks
from .blocks import same_column as same_column
from .blocks import same_row as same_row
from .blocks import token_blocks as token_blocks
from .distance import Causal as Causal
from .distance import causal as causal
from .distance import dilated as dilated
from .distance import local_causal as local_causal
from .distance import stride as stride
from .distance import window as window
from .global_tokens import behind as behind
from .global_tokens import from_tokens as from_tokens
from .global_tokens import summary as summary
from .global_tokens import to_tokens as to_tokens
from .global_tokens import tokens as tokens
from .input_dependent import at_positions as at_positions
from .input_dependent import edges as edges
from .input_dependent import from_row_start as from_row_start
from .input_dependent import keep as keep
from .input_dependent import lengths as lengths
from .input_dependent import padding_of as padding_of
from .input_dependent import segments as segments
from .input_dependent import since as since

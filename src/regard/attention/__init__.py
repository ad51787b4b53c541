"""How much to look, and where: every mechanism of the lineage, oldest first. One file each; this is the list."""

from ._base import Attention as Attention
from ._base import Facts as Facts
from ._state import Cache as Cache
from ._state import State as State
from .softmax import SoftmaxAttention as SoftmaxAttention

MECHANISMS: tuple[type[Attention], ...] = (SoftmaxAttention,)

# What `from regard.attention import *` gives, and so what the package gives: derived, so that a mechanism is one line above.
__all__ = ["MECHANISMS", "Attention", "Cache", "Facts", "State", *(mechanism.__name__ for mechanism in MECHANISMS)]

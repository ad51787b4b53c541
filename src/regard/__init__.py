"""regard: the whole lineage of attention behind one contract."""

from .patterns import causal as causal
from .patterns import tokens as tokens
from .patterns import window as window

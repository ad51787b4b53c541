"""The mechanisms inside models of other libraries. So far: transformers, by its attention interface.

    >>> import regard.interop
    >>> regard.interop.register()
    >>> model = AutoModel.from_config(config, attn_implementation="regard:performer")

`register()` makes every mechanism known under "regard:" and its name; `register("my-window", lambda heads, width, length:
LocalAttention(64))` makes one of your own making known. Nothing is registered by importing. `prepare(model)` makes the mechanisms of
a model before its first call, which those with parameters of their own need. docs/interop.md has the rest.
"""

from ._masks import Mask as Mask
from ._register import Factory as Factory
from ._register import prepare as prepare
from ._register import register as register

__all__ = ["Factory", "Mask", "prepare", "register"]

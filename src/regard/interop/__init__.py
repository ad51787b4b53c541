"""Models of other libraries: their checkpoints in ours and back, and our mechanisms inside them. So far: transformers.

    >>> model = regard.load("path/to/bert")      a directory with config.json and safetensors; docs/checkpoints.md has the rest

And the mechanisms in transformers' own models, by its attention interface:

    >>> import regard.interop
    >>> regard.interop.register()
    >>> model = AutoModel.from_config(config, attn_implementation="regard:performer")

`register()` makes every mechanism known under "regard:" and its name; `register("my-window", lambda heads, head_dim, length:
LocalAttention(64))` makes one of your own making known. Nothing is registered by importing. `prepare(model)` makes the mechanisms of
a model before its first call, which those with parameters of their own need. docs/transformers-attention.md has the rest.
"""

from ._masks import Mask as Mask
from ._register import Factory as Factory
from ._register import prepare as prepare
from ._register import register as register
from ._text_maps import is_imported as is_imported
from ._text_maps import text_maps as text_maps
from .checkpoints import export as export
from .checkpoints import import_checkpoint as import_checkpoint
from .checkpoints import load_run as load_run

__all__ = ["Factory", "Mask", "export", "import_checkpoint", "is_imported", "load_run", "prepare", "register", "text_maps"]

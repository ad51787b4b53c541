"""Models of other libraries: their checkpoints in ours and back, and our mechanisms inside them. So far: transformers.

    >>> model = regard.load("path/to/bert")      a directory with config.json and safetensors; docs/interchange.md has the rest

And the mechanisms in transformers' own models, by its attention interface:

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
from .checkpoints import export as export
from .checkpoints import export_run as export_run
from .checkpoints import import_checkpoint as import_checkpoint
from .checkpoints import load as load
from .checkpoints import load_tokenizers as load_tokenizers

__all__ = ["Factory", "Mask", "export", "export_run", "import_checkpoint", "load", "load_tokenizers", "prepare", "register"]

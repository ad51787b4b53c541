"""Attention of a model, made visible: capture of attention weights, statistics, pictures.

| name | what it is |
|---|---|
| `capture` | `with capture(model) as maps:` keeps the weights of every attention call inside; outputs stay bit for bit the same |
| `keep_inputs` | inside it, captures keep q and k, from which the explorer computes long maps piece by piece |
| `Maps`, `Map` | the weights by layer and call, with labels: entropy, distance, rollout, sub-words merged; save, load, pictures |
| `Scale` | what the darkest colour of a picture stands for: the largest weight of each row by default |
| `Sequence`, `Grid`, `Tree`, `Graph` | the layout of the keys |
| `word_numbers` | which sub-word tokens belong to the same word |
| `save_curves` | curves of training runs as a PNG file |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._capture import Indices as Indices
    from ._capture import Layers as Layers
    from ._capture import capture as capture
    from .curves import save_curves as save_curves
    from .inputs import keep_inputs as keep_inputs
    from .layouts import Graph as Graph
    from .layouts import Grid as Grid
    from .layouts import Sequence as Sequence
    from .layouts import Tree as Tree
    from .map import Map as Map
    from .maps import Maps as Maps
    from .scales import Scale as Scale
    from .scales import ScaleName as ScaleName
    from .token_labels import word_numbers as word_numbers
else:
    __getattr__, __dir__ = lazy(__name__)

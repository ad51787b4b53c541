"""What a model attends to: capture of attention weights, statistics, pictures.

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

from ._capture import Indices, Layers, capture
from .curves import save_curves
from .inputs import keep_inputs
from .layouts import Graph, Grid, Sequence, Tree
from .map import Map
from .maps import Maps
from .scales import Scale, ScaleName
from .token_labels import word_numbers

"""Seeing where a model looks: capture of weights, numbers about them, pictures of them.

| name | what it is |
|---|---|
| `capture` | `with capture(model) as maps:` keeps the weights of every attention called inside; results stay bit for bit the same |
| `Maps`, `Map` | what was kept: layers, calls, labels; entropy, distance, rollout, sub-words merged; save, load, pictures |
| `Sequence`, `Grid`, `Tree`, `Graph` | how the keys lie |
| `word_numbers` | which pieces of a tokeniser make one word |
"""

from .capture import capture as capture
from .labels import word_numbers as word_numbers
from .layouts import Graph as Graph
from .layouts import Grid as Grid
from .layouts import Sequence as Sequence
from .layouts import Tree as Tree
from .maps import Map as Map
from .maps import Maps as Maps

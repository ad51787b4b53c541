"""Positional encodings: attention is invariant to order, and these schemes provide it.

| scheme | acts on | what it encodes |
|---|---|---|
| `Sinusoidal`, `Learned` | embeddings | the absolute position |
| `GridSinusoidal`, `GridLearned` | embeddings | row and column in an image |
| `Rotary`, `GridRotary` | q and k | the distance, by rotation |
| `ALiBi` | scores | a linear penalty on the distance |
| `Buckets` (T5) | scores | a learned bias per range of distances |
| `RelativeXL` | q and scores | the distance, weighted by content |

All share one small contract, `Position`: an `Embedding` calls `add`, a `MultiHead` calls `encode`.
"""

from ._base import Offset as Offset
from ._base import Position as Position
from .absolute import GridLearned as GridLearned
from .absolute import GridSinusoidal as GridSinusoidal
from .absolute import Learned as Learned
from .absolute import Sinusoidal as Sinusoidal
from .relative import ALiBi as ALiBi
from .relative import Buckets as Buckets
from .relative import RelativeXL as RelativeXL
from .rotary import GridRotary as GridRotary
from .rotary import Rotary as Rotary

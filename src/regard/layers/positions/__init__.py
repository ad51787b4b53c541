"""Where a token stands: attention itself sees a set, and these tell it the order.

| scheme | acts on | what it says |
|---|---|---|
| `Sinusoidal`, `Learned` | embeddings | the place itself |
| `GridSinusoidal`, `GridLearned` | embeddings | row and column in a picture |
| `Rotary`, `GridRotary` | q and k | the distance, by rotation |
| `ALiBi` | scores | the further, the less |
| `Buckets` (T5) | scores | a learned number a distance |
| `RelativeXL` | q and scores | the distance, weighed by content |

All share one small contract, `Position`: an `Embedding` calls `add`, a `MultiHead` calls `place`.
"""

from ._base import Place as Place
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

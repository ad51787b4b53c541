"""How much to look, and where: every mechanism of the lineage, oldest first. One file each; the imports are the list."""

from ._base import Attention as Attention
from ._base import Facts as Facts
from ._state import Cache as Cache
from ._state import Running as Running
from ._state import Standing as Standing
from ._state import State as State
from .additive import AdditiveAttention as AdditiveAttention
from .concat import ConcatAttention as ConcatAttention
from .cosine import CosineAttention as CosineAttention
from .delta_net import DeltaNet as DeltaNet
from .dot import DotAttention as DotAttention
from .gated_delta_net import GatedDeltaNet as GatedDeltaNet
from .gated_linear import GatedLinearAttention as GatedLinearAttention
from .gaussian_window import GaussianWindow as GaussianWindow
from .general import GeneralAttention as GeneralAttention
from .hard import Choice as Choice
from .hard import HardAttention as HardAttention
from .linear import LinearAttention as LinearAttention
from .local import LocalMonotonicAttention as LocalMonotonicAttention
from .local import LocalPredictiveAttention as LocalPredictiveAttention
from .location import LocationAttention as LocationAttention
from .retention import Retention as Retention
from .softmax import SoftmaxAttention as SoftmaxAttention
from .state_space_duality import StateSpaceDuality as StateSpaceDuality

# The list everything else reads (tests, command line, tables), derived from the imports above: a new mechanism is one line there.
MECHANISMS: tuple[type[Attention], ...] = tuple(
    sorted(
        (part for part in list(vars().values()) if isinstance(part, type) and issubclass(part, Attention) and part is not Attention),
        key=lambda mechanism: mechanism.facts.year,
    )
)

# What `from regard.attention import *` gives, and so what the package gives.
__all__ = [
    "MECHANISMS",
    "Attention",
    "Cache",
    "Choice",
    "Facts",
    "Running",
    "Standing",
    "State",
    *(mechanism.__name__ for mechanism in MECHANISMS),
]

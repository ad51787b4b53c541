"""How much to look, and where: every mechanism of the lineage, oldest first. One file each; this is the list."""

from ._base import Attention as Attention
from ._base import Facts as Facts
from ._state import Cache as Cache
from ._state import Standing as Standing
from ._state import State as State
from .additive import AdditiveAttention as AdditiveAttention
from .concat import ConcatAttention as ConcatAttention
from .cosine import CosineAttention as CosineAttention
from .dot import DotAttention as DotAttention
from .gaussian_window import GaussianWindow as GaussianWindow
from .general import GeneralAttention as GeneralAttention
from .hard import Choice as Choice
from .hard import HardAttention as HardAttention
from .local import LocalMonotonicAttention as LocalMonotonicAttention
from .local import LocalPredictiveAttention as LocalPredictiveAttention
from .location import LocationAttention as LocationAttention
from .softmax import SoftmaxAttention as SoftmaxAttention

MECHANISMS: tuple[type[Attention], ...] = (
    GaussianWindow,  # 2013
    AdditiveAttention,  # 2014
    CosineAttention,
    HardAttention,  # 2015, February
    DotAttention,  # 2015, August
    GeneralAttention,
    ConcatAttention,
    LocationAttention,
    LocalMonotonicAttention,
    LocalPredictiveAttention,
    SoftmaxAttention,  # 2017
)

"""How much to look, and where: every mechanism of the lineage, oldest first. One file each; the imports are the list."""

from ._base import Attention as Attention
from ._base import Facts as Facts
from ._state import Cache as Cache
from ._state import Position as Position
from ._state import Running as Running
from ._state import Standing as Standing
from ._state import State as State
from ._state import places as places
from .adaptive_span import AdaptiveSpanAttention as AdaptiveSpanAttention
from .additive import AdditiveAttention as AdditiveAttention
from .axial import ColumnAttention as ColumnAttention
from .axial import RowAttention as RowAttention
from .bigbird import BigBirdAttention as BigBirdAttention
from .concat import ConcatAttention as ConcatAttention
from .cosine import CosineAttention as CosineAttention
from .delta_net import DeltaNet as DeltaNet
from .differential import DifferentialAttention as DifferentialAttention
from .dilated import DilatedAttention as DilatedAttention
from .dot import DotAttention as DotAttention
from .efficient import EfficientAttention as EfficientAttention
from .gated_delta_net import GatedDeltaNet as GatedDeltaNet
from .gated_linear import GatedLinearAttention as GatedLinearAttention
from .gaussian_window import GaussianWindow as GaussianWindow
from .general import GeneralAttention as GeneralAttention
from .hard import Choice as Choice
from .hard import HardAttention as HardAttention
from .image_transformer import Image1DAttention as Image1DAttention
from .image_transformer import Image2DAttention as Image2DAttention
from .linear import LinearAttention as LinearAttention
from .linformer import LinformerAttention as LinformerAttention
from .local import LocalMonotonicAttention as LocalMonotonicAttention
from .local import LocalPredictiveAttention as LocalPredictiveAttention
from .local import LocalPredictiveGeneralAttention as LocalPredictiveGeneralAttention
from .local_window import LocalAttention as LocalAttention
from .location import LocationAttention as LocationAttention
from .longformer import LongformerAttention as LongformerAttention
from .lsh import LSHAttention as LSHAttention
from .memory_compressed import MemoryCompressedAttention as MemoryCompressedAttention
from .nystrom import NystromAttention as NystromAttention
from .performer import Performer as Performer
from .retention import Retention as Retention
from .rfa import GatedRandomFeatureAttention as GatedRandomFeatureAttention
from .rfa import RandomFeatureAttention as RandomFeatureAttention
from .routing import RoutingAttention as RoutingAttention
from .sinkhorn import SinkhornAttention as SinkhornAttention
from .softmax import SoftmaxAttention as SoftmaxAttention
from .sortcut import SortCutAttention as SortCutAttention
from .sparse_transformer import SparseFixedAttention as SparseFixedAttention
from .sparse_transformer import SparseStridedAttention as SparseStridedAttention
from .state_space_duality import StateSpaceDuality as StateSpaceDuality
from .streaming import StreamingAttention as StreamingAttention
from .strided import StridedAttention as StridedAttention
from .synthesizer import DenseSynthesizer as DenseSynthesizer
from .synthesizer import FactorisedDenseSynthesizer as FactorisedDenseSynthesizer
from .synthesizer import FactorisedRandomSynthesizer as FactorisedRandomSynthesizer
from .synthesizer import MixtureSynthesizer as MixtureSynthesizer
from .synthesizer import RandomSynthesizer as RandomSynthesizer

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

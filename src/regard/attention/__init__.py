"""Every attention mechanism, one file each. The imports are the list."""

from typing import TypeVar

from ..errors import BadConfig, UnknownName
from ._base import Attention, Call, Facts, Observation, Paper
from ._cache import Cache
from ._feature_map import KEY_PATTERNS, FeatureMapAttention
from ._pattern import PatternAttention
from ._recurrent import CAUSAL_PATTERNS, RecurrentAttention, Terms
from ._recurrent_state import RecurrentState, StepState
from ._score import DotProductAttention, PointwiseAttention, ScoreAttention
from ._state import Position, State, positions
from .adaptive_span import AdaptiveSpanAttention
from .additive import AdditiveAttention
from .axial import ColumnAttention, RowAttention
from .bigbird import BigBirdAttention
from .concat import ConcatAttention
from .cosine import CosineAttention
from .delta_net import DeltaNet
from .differential import DifferentialAttention
from .dilated import DilatedAttention
from .dot import DotAttention
from .efficient import EfficientAttention
from .entmax import EntmaxAttention
from .forgetting import ForgettingAttention
from .gated_delta_net import GatedDeltaNet
from .gated_linear import GatedLinearAttention
from .gaussian_window import GaussianWindow
from .general import GeneralAttention
from .hard import Choice, HardAttention
from .image_transformer import Image1DAttention, Image2DAttention
from .linear import LinearAttention
from .linformer import LinformerAttention
from .local import LocalAttention
from .location import LocationAttention
from .longformer import LongformerAttention
from .lsh import LSHAttention
from .luong_local import LocalMonotonicAttention, LocalPredictiveAttention, LocalPredictiveGeneralAttention
from .memory_compressed import MemoryCompressedAttention
from .nystrom import NystromAttention
from .performer import Performer
from .retention import Retention
from .rfa import GatedRandomFeatureAttention, RandomFeatureAttention
from .routing import RoutingAttention
from .sigmoid import SigmoidAttention
from .sinkhorn import SinkhornAttention
from .softmax import SoftmaxAttention
from .sortcut import SortCutAttention
from .sparse_transformer import SparseFixedAttention, SparseStridedAttention
from .state_space_duality import StateSpaceDuality
from .streaming import StreamingAttention
from .strided import StridedAttention
from .synthesizer import DenseSynthesizer, FactorisedDenseSynthesizer, FactorisedRandomSynthesizer, MixtureSynthesizer, RandomSynthesizer

Mechanism = TypeVar("Mechanism", bound=Attention)

# Derived from the imports above: a new mechanism is one line there. Tests, command line, tables and web page read this list.
MECHANISMS: tuple[type[Attention], ...] = tuple(
    sorted(
        (part for part in list(vars().values()) if isinstance(part, type) and issubclass(part, Attention) and "facts" in vars(part)),
        key=lambda mechanism: mechanism.facts.paper.year,
    )
)
_registered: dict[str, type[Attention]] = {}


def mechanisms() -> dict[str, type[Attention]]:
    """Every mechanism by name, oldest first, then registered ones."""
    return {mechanism.facts.name: mechanism for mechanism in MECHANISMS} | _registered


def find_mechanism(name: str) -> type[Attention]:
    """The mechanism called `name`, as configs and options spell it."""
    known = mechanisms()
    if name not in known:
        raise UnknownName("mechanism", name, known)
    return known[name]


def register(mechanism: type[Mechanism]) -> type[Mechanism]:
    """Make a class outside this package known by its `facts.name`: in configs, `with_attention`, `regard compare`, transformers. A decorator."""
    if not (isinstance(mechanism, type) and issubclass(mechanism, Attention) and hasattr(mechanism, "facts")):
        raise BadConfig(f"register takes a subclass of regard.Attention with `facts`, got {mechanism!r}")
    name = mechanism.facts.name
    taken = mechanisms().get(name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (mechanism.__module__, mechanism.__qualname__):
        raise BadConfig(f"a mechanism called {name!r} exists already ({taken.__module__}.{taken.__qualname__}); choose another facts.name")
    _registered[name] = mechanism
    return mechanism


# The names of `from regard.attention import *`, re-exported by the package.
__all__ = [
    "MECHANISMS",
    "Attention",
    "Cache",
    "Choice",
    "DotProductAttention",
    "Facts",
    "FeatureMapAttention",
    "Paper",
    "PatternAttention",
    "PointwiseAttention",
    "RecurrentAttention",
    "RecurrentState",
    "ScoreAttention",
    "State",
    "StepState",
    "register",
    *(mechanism.__name__ for mechanism in MECHANISMS),
]

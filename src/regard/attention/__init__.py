"""Every attention mechanism, one file each. The imports are the list; `as` tells type checkers that a name is public."""

from typing import TYPE_CHECKING

from ..names import find
from ._base import Attention as Attention
from ._base import Call as Call
from ._base import Facts as Facts
from ._base import Observation as Observation
from ._base import Paper as Paper
from ._cache import Cache as Cache
from ._feature_map import KEY_PATTERNS as KEY_PATTERNS
from ._feature_map import FeatureMapAttention as FeatureMapAttention
from ._feature_map import FeatureMapFacts as FeatureMapFacts
from ._pattern import PatternAttention as PatternAttention
from ._pattern import PatternFacts as PatternFacts
from ._recurrent import CAUSAL_PATTERNS as CAUSAL_PATTERNS
from ._recurrent import RecurrentAttention as RecurrentAttention
from ._recurrent import RecurrentFacts as RecurrentFacts
from ._recurrent import Terms as Terms
from ._recurrent_state import RecurrentState as RecurrentState
from ._recurrent_state import StepState as StepState
from ._score import DotProductAttention as DotProductAttention
from ._score import PointwiseAttention as PointwiseAttention
from ._score import ScoreAttention as ScoreAttention
from ._sdpa import sdpa as sdpa
from ._state import Position as Position
from ._state import State as State
from ._state import positions as positions
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
from .entmax import EntmaxAttention as EntmaxAttention
from .forgetting import ForgettingAttention as ForgettingAttention
from .gated_delta_net import GatedDeltaNet as GatedDeltaNet
from .gated_linear import GatedLinearAttention as GatedLinearAttention
from .gaussian_window import GaussianWindow as GaussianWindow
from .general import GeneralAttention as GeneralAttention
from .graph_attention import GraphAttention as GraphAttention
from .graph_attention_v2 import GraphAttentionV2 as GraphAttentionV2
from .hard import Choice as Choice
from .hard import HardAttention as HardAttention
from .image_transformer import Image1DAttention as Image1DAttention
from .image_transformer import Image2DAttention as Image2DAttention
from .kimi_delta import KimiDeltaAttention as KimiDeltaAttention
from .linear import LinearAttention as LinearAttention
from .linformer import LinformerAttention as LinformerAttention
from .local import LocalAttention as LocalAttention
from .location import LocationAttention as LocationAttention
from .longformer import LongformerAttention as LongformerAttention
from .lsh import LSHAttention as LSHAttention
from .luong_local import LocalMonotonicAttention as LocalMonotonicAttention
from .luong_local import LocalPredictiveAttention as LocalPredictiveAttention
from .luong_local import LocalPredictiveGeneralAttention as LocalPredictiveGeneralAttention
from .memory_compressed import MemoryCompressedAttention as MemoryCompressedAttention
from .nystrom import NystromAttention as NystromAttention
from .performer import Performer as Performer
from .retention import Retention as Retention
from .rfa import GatedRandomFeatureAttention as GatedRandomFeatureAttention
from .rfa import RandomFeatureAttention as RandomFeatureAttention
from .routing import RoutingAttention as RoutingAttention
from .sigmoid import SigmoidAttention as SigmoidAttention
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

# Derived from the imports above: a new mechanism is one line there. Tests, command line, tables and web page read this list.
MECHANISMS: tuple[type[Attention], ...] = tuple(
    sorted(
        (part for part in list(vars().values()) if isinstance(part, type) and issubclass(part, Attention) and "facts" in vars(part)),
        key=lambda mechanism: mechanism.facts.paper.year,
    )
)
registered: dict[str, type[Attention]] = {}  # classes from outside the package: `regard.register`


def mechanisms() -> dict[str, type[Attention]]:
    """Every mechanism by name, oldest first, then registered ones."""
    return {mechanism.facts.name: mechanism for mechanism in MECHANISMS} | registered


def find_mechanism(name: str) -> type[Attention]:
    """The mechanism called `name`, as configs and options spell it.

    Args:
        name: name of a mechanism, registered ones included.
    """
    return find("mechanism", name, mechanisms)


# The names of `from regard.attention import *`, re-exported by the package. Type checkers cannot follow it, and take the imports above.
if not TYPE_CHECKING:
    __all__ = [
        "MECHANISMS",
        "Attention",
        "Cache",
        "Choice",
        "DotProductAttention",
        "Facts",
        "FeatureMapAttention",
        "FeatureMapFacts",
        "Paper",
        "PatternAttention",
        "PatternFacts",
        "PointwiseAttention",
        "RecurrentAttention",
        "RecurrentFacts",
        "RecurrentState",
        "ScoreAttention",
        "State",
        "StepState",
        *(mechanism.__name__ for mechanism in MECHANISMS),
    ]

"""The heavy primitives that mechanisms share, behind one call each. Other packages import from here only.

| call | what it computes |
|---|---|
| `attend` | exact softmax attention over any pattern, with its log-sum-exp, in linear memory, forward and backward |
| `attend_pointwise` | the same without a normaliser: weights are an `ScoreActivation` of single scores (`SIGMOID`, `RELU`, `SQUARED_RELU`, your own) |
| `edge_plan`, `average_by_edges` | the edges of a sparse list of pairs; softmax attention along them, from scores of your own |
| `merge` | attention over disjoint sets of keys, merged into that over all of them |
| `attend_tile`, `attend_tile_backward` | softmax attention of one batch of small blocks, for autograd functions of their own |
| `attend_many_small` | exact attention of many small problems, each with hidden pairs of its own |
| `fast_linear`, `apply_linear` | a linear map, faster for the few rows of a decoding step |
| `split_linear` | a linear map cut into parts, such as q, k and v, without concatenating their gradients |
| `gelu_tanh` | GPT's nonlinearity, forward and backward without a tanh |
| `dropout` | dropout with cheap random numbers |
| `scan` | sums of outer products of keys and values along a sequence, with decay, in chunks |
| `delta_scan` | the delta rule along a sequence: values overwritten, not added, with decay, in chunks |
| `bidirectional_lstm`, `bidirectional_gru` | recurrent layers over rows of unequal length, both directions at once |
| `favor`, `causal_favor` | attention by exponential features, a few rows at a time |
| `smoothed_cross_entropy` | label-smoothed cross-entropy of an output projection, without the logits of all rows |

Helpers of all of them: `no_autocast`, `first_derivatives_only`, `accumulation_dtype`, `float32_or_wider`, `LOG2E`, and `Scratch` for reused buffers.

Each is written in plain PyTorch first. Faster forms stand behind the same call: `forms()` says which are live, and `force("plain")`
(or `"dense"`, `"tiles"`, `"edges"`) makes exact attention take one path within a block.
"""

from .bidirectional import bidirectional_gru as bidirectional_gru
from .bidirectional import bidirectional_lstm as bidirectional_lstm
from .chance import choose as choose
from .chance import normal as normal
from .chance import uniform as uniform
from .cross_entropy import smoothed_cross_entropy as smoothed_cross_entropy
from .delta_rule import delta_scan as delta_scan
from .delta_rule import delta_scan_definition as delta_scan_definition
from .exact import forms as forms
from .exact.bias import Bias as Bias
from .exact.bias import BiasAtPositions as BiasAtPositions
from .exact.bias import EdgeBias as EdgeBias
from .exact.bias import add_bias as add_bias
from .exact.by_edges import EdgePlan as EdgePlan
from .exact.by_edges import average_by_edges as average_by_edges
from .exact.by_edges import edge_plan as edge_plan
from .exact.merging import merge as merge
from .exact.paths import force as force
from .exact.tiled_pointwise import RELU as RELU
from .exact.tiled_pointwise import SIGMOID as SIGMOID
from .exact.tiled_pointwise import SQUARED_RELU as SQUARED_RELU
from .exact.tiled_pointwise import ScoreActivation as ScoreActivation
from .exact.tiled_pointwise import attend_pointwise as attend_pointwise
from .exact.tiled_softmax import attend as attend
from .exact.tiled_softmax import attend_tile as attend_tile
from .exact.tiled_softmax import attend_tile_backward as attend_tile_backward
from .gelu import gelu_tanh as gelu_tanh
from .linear_recurrence import scan as scan
from .linear_recurrence import scan_definition as scan_definition
from .linears import apply_linear as apply_linear
from .linears import fast_linear as fast_linear
from .linears import split_linear as split_linear
from .numerics import LOG2E as LOG2E
from .numerics import accumulation_dtype as accumulation_dtype
from .numerics import first_derivatives_only as first_derivatives_only
from .numerics import float32_or_wider as float32_or_wider
from .numerics import inside_transform as inside_transform
from .numerics import no_autocast as no_autocast
from .random_features import causal_favor as causal_favor
from .random_features import favor as favor
from .random_masks import dropout as dropout
from .scratch import Scratch as Scratch
from .small_batches import HIDE as HIDE
from .small_batches import SCORES_AT_ONCE as SCORES_AT_ONCE
from .small_batches import HiddenPairs as HiddenPairs
from .small_batches import attend_many_small as attend_many_small

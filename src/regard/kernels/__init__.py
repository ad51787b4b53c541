"""The heavy primitives that mechanisms share, behind one call each. Other packages import from here only.

| call | what it computes |
|---|---|
| `attend` | exact softmax attention over any pattern, with its log-sum-exp, in linear memory, forward and backward |
| `attend_pointwise` | the same without a normaliser: weights are an `ScoreActivation` of single scores (`SIGMOID`, `RELU`, `SQUARED_RELU`, your own) |
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
(or `"dense"`, `"tiles"`) makes exact attention take one path within a block.
"""

from .bidirectional import bidirectional_gru, bidirectional_lstm
from .cross_entropy import smoothed_cross_entropy
from .delta_rule import delta_scan, delta_scan_definition
from .exact import forms
from .exact.bias import Bias, BiasAtPositions, add_bias
from .exact.merging import merge
from .exact.paths import force
from .exact.tiled_pointwise import RELU, SIGMOID, SQUARED_RELU, ScoreActivation, attend_pointwise
from .exact.tiled_softmax import attend, attend_tile, attend_tile_backward
from .gelu import gelu_tanh
from .linear_recurrence import scan, scan_definition
from .linears import apply_linear, fast_linear, split_linear
from .numerics import LOG2E, accumulation_dtype, first_derivatives_only, float32_or_wider, inside_transform, no_autocast
from .random_features import causal_favor, favor
from .random_masks import dropout
from .scratch import Scratch
from .small_batches import HIDE, SCORES_AT_ONCE, HiddenPairs, attend_many_small

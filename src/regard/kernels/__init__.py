"""One door to the heavy primitives that mechanisms share.

| call | what it computes |
|---|---|
| `attend` | exact attention over any pattern, with its log-sum-exp, in linear memory, forward and backward |
| `merge` | results over disjoint sets of keys, put together |
| `many` | exact attention of many small problems, each with pairs of its own that do not count |
| `linear`, `applied` | a linear map, faster for the few rows of a step of decoding |
| `parts` | a linear map in parts, such as q, k and v, without putting their gradients together |
| `gelu_tanh` | GPT's nonlinearity, there and back without a tanh |
| `dropout` | zeros at random, with cheap random numbers |
| `scan` | sums of outer products of keys and values along a sequence, with decay, in chunks |
| `favor`, `causal_favor` | attention by exponential features, a few rows at a time |
| `delta` | the delta rule along a sequence: values written over what was there, with decay, in chunks |
| `smoothed_cross_entropy` | label-smoothed cross-entropy of an output projection, without the logits of all rows |

`keep_memory` tells the C library to keep what is freed: large tensors are a third faster.

Each is written in plain PyTorch first. Faster forms may stand behind the same call; `forms()` says which are live.
"""

from ._bias import Bias as Bias
from ._bias import PlacedBias as PlacedBias
from ._bias import add_bias as add_bias
from ._forms import forms as forms
from ._memory import keep_memory as keep_memory
from ._probe import Bf16 as Bf16
from ._probe import bf16 as bf16
from ._probe import cpu_model as cpu_model
from .cross_entropy import smoothed_cross_entropy as smoothed_cross_entropy
from .delta import delta as delta
from .delta import delta_definition as delta_definition
from .dropout import dropout as dropout
from .exact import attend as attend
from .favor import causal_favor as causal_favor
from .favor import favor as favor
from .gelu import gelu_tanh as gelu_tanh
from .linear import applied as applied
from .linear import linear as linear
from .linear import parts as parts
from .many import Hidden as Hidden
from .many import many as many
from .merge import merge as merge
from .scan import scan as scan
from .scan import scan_definition as scan_definition

"""From a model to answers: greedy, beam, sampling, stop strings, alignments. One decoder for everything that has `step`.

| name | what it is |
|---|---|
| `translate`, `translated` | many sources to many answers, in batches of similar length |
| `search`, `Beam`, `GREEDY` | the best answers, by `GNMT` or `Power` length penalty, and coverage |
| `sample`, `Sampling` | drawn answers: temperature, top-k, top-p, min-p, a seed |
| `complete`, `stream`, `Options`, `Completion`, `few_shot` | prompts go on as text, whole or piece by piece |
| `quantised`, `lightened` | a model with int8 or bfloat16 weights, for decoding |
| `Engine`, `Request`, `Row`, `Piece`, `Said` | completions of many prompts at once, in a batch that changes |
| `Stops`, `Stream`, `Watcher` | stop strings in text that streams |
| `Hypothesis` | an answer: ids, score, log-probabilities, where it looked |
| `align` | who was translated from whom |
"""

from . import align as align
from ._base import Encoder as Encoder
from ._base import Hypothesis as Hypothesis
from ._base import Model as Model
from ._base import Relative as Relative
from ._base import Tokens as Tokens
from .batches import translate as translate
from .batches import translated as translated
from .complete import Completion as Completion
from .complete import Options as Options
from .complete import complete as complete
from .complete import few_shot as few_shot
from .complete import stream as stream
from .engine import Engine as Engine
from .penalties import GNMT as GNMT
from .penalties import Power as Power
from .requests import Piece as Piece
from .requests import Request as Request
from .requests import Row as Row
from .requests import Said as Said
from .sample import Sampling as Sampling
from .sample import sample as sample
from .search import GREEDY as GREEDY
from .search import Beam as Beam
from .search import search as search
from .stops import Stops as Stops
from .stops import Stream as Stream
from .stops import Watcher as Watcher
from .weights import lightened as lightened
from .weights import quantised as quantised

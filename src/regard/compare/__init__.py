"""Cost of mechanisms on this machine: time, memory, and the length from which each beats exact attention.

options.py  `CompareOptions`: sizes, repeats, limits
run.py      `compare`: what is measured, in which order, for how long
process.py  a child process that is called over pipes, in JSON, and the loop inside it; whatever happens to it, the parent goes on
visit.py    its job: measure one mechanism at one length, once
measure.py  timings, peak memory and limits, shared with benchmarks/
result.py   rows, crossovers, tables, JSON
picture.py  time against length
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from .options import CompareOptions as CompareOptions
    from .process import Child as Child
    from .result import Comparison as Comparison
    from .result import Crossover as Crossover
    from .result import Row as Row
    from .result import crossover as crossover
    from .run import compare as compare
else:
    __getattr__, __dir__ = lazy(__name__)

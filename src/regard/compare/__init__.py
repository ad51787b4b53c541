"""What mechanisms cost on this machine: time, memory, and the length from which each beats exact attention.

options.py  `CompareOptions`: sizes, repeats, limits
run.py      `compare`: what is measured, in which order, for how long
process.py  a child process that is called over pipes, in JSON, and the loop inside it; whatever happens to it, the parent goes on
visit.py    its job: measure one mechanism at one length, once
measure.py  timings, peak memory and limits, shared with benchmarks/
result.py   rows, crossovers, tables, JSON
picture.py  time against length
"""

from .options import CompareOptions
from .process import Child
from .result import Comparison, Crossover, Row, crossover
from .run import compare

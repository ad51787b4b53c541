"""What mechanisms cost on this machine, measured: time, memory, and the length from which each beats exact attention.

process.py  a child process that is asked over pipes, in JSON; whatever happens to it, the parent goes on
child.py    the loop inside it, its limits, and how its peak memory is read
visit.py    what it does when asked: one mechanism at one length, once through
run.py      `compare`: who is asked, in which order, for how long
result.py   what was found: rows, crossovers, tables, JSON
picture.py  time against length
"""

from .process import Child as Child
from .result import Comparison as Comparison
from .result import Crossover as Crossover
from .result import Row as Row
from .result import crossover as crossover
from .run import compare as compare

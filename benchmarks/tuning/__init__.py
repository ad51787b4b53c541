"""Problems and candidates of the tuning runs: what `benchmarks.tune` tries, by task."""

from __future__ import annotations

from .grids import CANDIDATES, PROBLEMS, Candidate, Problem

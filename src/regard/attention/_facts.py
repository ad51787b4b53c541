"""Facts of a mechanism: its name, its paper, its formula and cost, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ._cache import Cache
from ._state import State


class Paper(NamedTuple):
    """Where something was published."""

    title: str  # the published one
    year: int  # year of the first version
    where: str  # arXiv number or venue


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Statements about a mechanism. Facts describe it and choose its tests; a class reads only its own, and other code asks its methods."""

    name: str  # used in lists, configs and on the command line
    paper: Paper  # its first publication
    formula: str  # in one line, in the letters of the legend
    time: str  # per head, in the letters of the legend
    memory: str  # per head, besides inputs and outputs
    patterns: Literal["any"] | tuple[str, ...] = "any"  # or the rules it supports, and their conjunctions; without "full", each with causal
    rows: Literal["independent", "sequential", "joint"] = "independent"  # weights depend on: that query, also earlier ones, all queries
    cross: bool | Literal["last"] = True  # queries and keys may be different sequences; "last": the queries are the last of the keys
    state: type[State] | None = Cache  # its memory in a stream: a Cache, a RecurrentState, a StepState over fixed keys; None: it cannot
    normalised: bool = True  # each row with any allowed key sums to one
    positional: bool = False  # the order of the keys matters
    bias: bool = True  # it has scores that a bias can be added to

    @property
    def causal(self) -> Literal["strict", "mask-only", "none"]:
        """Strict: no influence of the future. Mask-only: weights are masked, but statistics of the future (hashes, clusters) leak in."""
        if self.patterns != "any" and "causal" not in self.patterns:
            return "none"
        return "mask-only" if self.rows == "joint" else "strict"

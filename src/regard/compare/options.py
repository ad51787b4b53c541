"""Options of `compare`, what to measure and for how long: one value, from which the command line is built too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import BadConfig, UnknownName

Dtype = Literal["float32", "bfloat16", "float64"]
MAX_LENGTH, MAX_SIZE = 2**20, 2**16  # tokens; width, heads or sequences


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Sizes, repeats and limits of a comparison."""

    lengths: tuple[int, ...] = (256, 1024, 4096)
    """Sequence lengths in tokens."""
    width: int = 256
    """Model width; each head has width / heads."""
    heads: int = 4
    """Number of attention heads."""
    batch_size: int = 1
    """Sequences per batch."""
    causal: bool = True
    """False: tokens attend to all tokens; by default to earlier ones only, and decoding steps are measured too."""
    dtype: Dtype = "float32"
    """Dtype of inputs and parameters."""
    projections: bool = False
    """Include the projections of multi-head attention."""
    threads: int | None = None
    """Threads per process; PyTorch's default if not given."""
    repeats: int = 5
    """Maximum number of repeats; fewer if time runs out."""
    minutes: float = 2.0
    """Time limit in minutes; what was not measured by then is listed."""
    memory: float | None = None
    """GiB that a mechanism may allocate (Linux only); four fifths of the free memory if not given."""
    seed: int = 0
    """Seed of inputs and parameters."""

    def check(self) -> None:
        """Raise if a value is out of range. Not when constructed: the command line would wrap that error in one of its own."""
        if not isinstance(self.lengths, list | tuple) or not 1 <= len(self.lengths) <= 32:
            raise BadConfig(f"lengths={self.lengths!r}: expected 1 to 32 lengths, as in --lengths 256 1024 4096")
        for length in self.lengths:
            _check_integer("length", length, 1, MAX_LENGTH)
        for name in ("width", "heads", "batch_size"):
            _check_integer(name, getattr(self, name), 1, MAX_SIZE)
        if self.width % self.heads:
            raise BadConfig(f"width={self.width} is not a multiple of heads={self.heads}; choose a divisor of the width")
        if self.dtype not in get_args(Dtype):
            raise UnknownName("dtype", str(self.dtype), get_args(Dtype))
        if self.threads is not None:
            _check_integer("threads", self.threads, 1, os.cpu_count() or 1)
        _check_integer("repeats", self.repeats, 1, 1000)
        _check_integer("seed", self.seed, 0, 2**62)
        if not 0 < self.minutes <= 7 * 24 * 60:
            raise BadConfig(f"minutes={self.minutes}: expected more than 0 and at most a week")
        if self.memory is not None and not 0 < self.memory < 2**20:
            raise BadConfig(f"memory={self.memory}: expected GiB, more than 0")


def _check_integer(name: str, x: Any, least: int, most: int) -> None:
    if isinstance(x, bool) or not isinstance(x, int) or not least <= x <= most:
        raise BadConfig(f"{name}={x!r}: expected an integer from {least:,} to {most:,}")

"""Number of this process among several: the one place that reads what torchrun and `train --nproc-per-node` set in the environment."""

from __future__ import annotations

import os


def started_together() -> bool:
    """Return whether this process was started with others, or by a launcher for one."""
    return "RANK" in os.environ


def rank() -> int:
    """Number of this process among those that were started together; 0 if it is alone."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Number of this process among those on the same machine; 0 if it is alone."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """Number of processes that were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_process() -> bool:
    """Return whether this process writes files and messages: of several the first does."""
    return rank() == 0

"""Measurements of CPU time on one thread: other processes of a busy machine do not count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """On a busy machine, threads waiting for each other would be measured instead of the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """The fastest of `repeats` calls after a warm-up, without gradients, on one thread."""
    with torch.inference_mode(), one_thread():
        call()
        seconds = []
        for _ in range(repeats):
            start = time.thread_time()
            call()
            seconds.append(time.thread_time() - start)
    return min(seconds) * 1e3

"""Measuring time and memory, for `regard compare` and for benchmarks/: interleaved timings, peak memory, a memory limit, the machine."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..machine import cpu_model, read_kib

STATUS, CLEAR, MEMINFO = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median of the repeats and their relative spread, (largest − smallest) / median."""

    median: float
    spread: float = 0.0
    repeats: int = 1

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        median = statistics.median(seconds)
        return cls(median, (max(seconds) - min(seconds)) / median, len(seconds))

    def __str__(self) -> str:
        return f"{self.median * 1e3:.1f} ms" + (f" ±{self.spread * 50:.0f} %" if self.repeats > 1 else ", once")


def seconds_of(call: Callable[[], object], calls: int = 1) -> float:
    """Mean wall-clock seconds of one call."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def time_side_by_side(candidates: Mapping[str, Callable[[], object]], repeats: int = 7, min_seconds: float = 0.05) -> dict[str, Timing]:
    """Time the candidates in turn, `repeats` times over, so that a disturbance hits all of them; short calls are repeated within a turn."""
    calls = {}
    for name, call in candidates.items():
        call()
        calls[name] = max(1, int(min_seconds / max(seconds_of(call), 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            seconds[name].append(seconds_of(call, calls[name]))
    return {name: Timing.of(each) for name, each in seconds.items()}


def peak_memory(call: Callable[[], object]) -> float | None:
    """MiB by which this process grows at its peak while `call` runs; None where the system does not tell.

    Linux can reset its record of the peak. Elsewhere only the peak of the whole process is known: a call that stays below it gives None.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that malloc kept would hide what is allocated now
    try:
        CLEAR.write_text("5")
        before = read_kib(STATUS, "VmHWM")
    except OSError:
        before = None
    highest = _process_peak()
    call()
    if before is not None:
        after = read_kib(STATUS, "VmHWM")
        return None if after is None else max(0, after - before) / 1024
    now = _process_peak()
    return now - highest if now is not None and highest is not None and now > highest else None


def limit_memory(mib: float) -> None:
    """Let this process allocate `mib` MiB more; beyond that an allocation fails. Does nothing where the system has no such limit."""
    held = read_kib(STATUS, "VmData")
    if held is not None:
        import resource

        with contextlib.suppress(OSError, ValueError):  # a lower limit is already set
            resource.setrlimit(resource.RLIMIT_DATA, (held * 1024 + int(mib * 2**20), -1))


def free_memory() -> float | None:
    """MiB of available memory; None where the system does not tell."""
    kib = read_kib(MEMINFO, "MemAvailable")
    return None if kib is None else kib / 1024


def machine(threads: int | None = None) -> str:
    """One line about where a measurement was made: processor, instruction set, threads, versions."""
    threads = threads or torch.get_num_threads()
    return (
        f"{cpu_model()} ({torch.backends.cpu.get_cpu_capability()}), {threads} {'thread' if threads == 1 else 'threads'}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def _process_peak() -> float | None:
    """Peak resident memory of this process since it started, in MiB."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

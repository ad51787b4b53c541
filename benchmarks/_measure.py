"""Side-by-side measurement: interleaved repeats, medians and spread, peak memory in a child process, results written to a page."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "RESULTS.md"


@dataclass(frozen=True)
class Timing:
    """Seconds: the median of the repeats, and how far they lie apart."""

    median: float
    spread: float  # (largest − smallest) / median

    def __str__(self) -> str:
        return f"{self.median * 1e3:.1f} ms ±{self.spread * 50:.0f} %"


def side_by_side(candidates: dict[str, Callable[[], object]], repeats: int = 7, at_least: float = 0.05) -> dict[str, Timing]:
    """Time candidates in turn, again and again, so that what disturbs one disturbs all."""
    inner = {}
    for name, call in candidates.items():
        call()
        start = time.perf_counter()
        call()
        inner[name] = max(1, int(at_least / max(time.perf_counter() - start, 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            start = time.perf_counter()
            for _ in range(inner[name]):
                call()
            seconds[name].append((time.perf_counter() - start) / inner[name])
    return {name: Timing(statistics.median(s), (max(s) - min(s)) / statistics.median(s)) for name, s in seconds.items()}


def peak_memory(code: str, timeout: float | None = None, **values: object) -> float:
    """MiB by which a fresh process grows over what it held before, while running `code` after its line `# measure`."""
    before, after = code.split("# measure")
    script = "\n".join(
        [
            f"values = {json.dumps(values)}",
            "globals().update(values)",
            before,
            "open('/proc/self/clear_refs', 'w').write('5')",
            "peak = lambda: next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))",
            "start = peak()",
            after,
            "print(peak() - start)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ, timeout=timeout)
    return int(done.stdout.split()[-1]) / 1024


def machine() -> str:
    """One line about where this was measured."""
    try:
        cpu = next(line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    return (
        f"{cpu} ({torch.backends.cpu.get_cpu_capability()}), {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    )


def write(section: str, lines: list[str]) -> None:
    """Replace one section of the results page by what was just measured."""
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    page = RESULTS.read_text() if RESULTS.exists() else "# Measured\n\nWritten by the benchmarks; ratios are of one run, side by side.\n"
    block = "\n".join([begin, *lines, end])
    page = page[: page.index(begin)] + block + page[page.index(end) + len(end) :] if begin in page else f"{page.rstrip()}\n\n{block}\n"
    RESULTS.write_text(page)
    print("\n".join(lines))


def row(section: str, head: list[str], columns: str, line: str) -> None:
    """Put one row into a table of the results page; a row with the same first cell and the same second is replaced."""
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    page = RESULTS.read_text() if RESULTS.exists() else ""
    old = page[page.index(begin) : page.index(end)].splitlines() if begin in page else []
    rows = [one for one in old if one.startswith("| ") and one != columns and one.split("|")[1:3] != line.split("|")[1:3]]
    write(section, [*head, columns, "|---" * (columns.count("|") - 1) + "|", *sorted([*rows, line])])

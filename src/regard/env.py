"""What this machine is and what runs on it: the first thing to put in a bug report."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from . import kernels

SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16")


def environment(version: str) -> dict[str, Any]:
    """Everything `regard env` prints, as plain values. Asks whether bfloat16 works, which takes some seconds the first time."""
    return {
        "regard": version,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": {
            "model": kernels.cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch uses": torch.backends.cpu.get_cpu_capability(),
            "instruction sets": instruction_sets(),
        },
        "memory GiB": memory(),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "kernels": kernels.forms(),
        "bfloat16": asdict(kernels.bf16()),
    }


def instruction_sets() -> list[str]:
    """Those of the announced ones that matter here. Announced is not given: see `kernels.bf16`."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("flags", "Features")):
            announced = set(line.partition(":")[2].split())
            return [name for name in SETS if name in announced]
    return []


def memory() -> float | None:
    """In GiB, the whole machine; None where the system does not say."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            return round(int(line.split()[1]) / 2**20, 1)
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

"""Abilities of this computer: processor, memory, allocator, and whether bfloat16 is safe and fast.

bfloat16 is probed in a child process, because the wrong answer kills the process. Some virtual machines advertise matrix instructions
(AMX) that they do not provide; oneDNN believes it, and the first bfloat16 matmul ends the process with SIGILL. Capping oneDNN's
instruction set before PyTorch starts avoids that. On processors without bfloat16 instructions the matmul works, hundreds of times slower
than in float32.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from .errors import BadConfig, NotSupported
from .processes import local_rank, started_together

DEVICES = ("cpu", "cuda", "mps", "xpu", "mtia", "hpu", "xla")  # kinds that PyTorch trains on
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16")
SIDE = 512  # of the matrices that are multiplied to measure the speed
SAMPLE = 0.2  # seconds in which the cores are watched
_TRIM_THRESHOLD = -1  # of malloc.h
_MMAP_THRESHOLD = -3


def environment() -> dict[str, Any]:
    """Describe this machine as `regard env` prints it, as plain values. Probes bfloat16, which takes a few seconds the first time."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": {
            "model": cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch uses": torch.backends.cpu.get_cpu_capability(),
            "instruction sets": instruction_sets(),
        },
        "memory GiB": memory(),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "bfloat16": asdict(bf16()),
    }


def cpu_model() -> str:
    """The processor's name for itself."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "unknown"


def instruction_sets() -> list[str]:
    """The advertised instruction sets that matter here. Advertised does not mean provided: see `bf16`."""
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith(("flags", "Features"))), "")
    return [name for name in INSTRUCTION_SETS if name in flags.partition(":")[2].split()]


def memory() -> float | None:
    """The memory of the whole machine in GiB; None where the system does not say."""
    kib = read_kib("/proc/meminfo", "MemTotal")
    return None if kib is None else round(kib / 2**20, 1)


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping: what the system calls available, within the limit of a container; None if unknown."""
    kib = read_kib("/proc/meminfo", "MemAvailable")
    found = [] if kib is None else [kib * 1024]
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}")[:1] for name in ("max", "current"))
    if limit and used and limit[0].isdecimal() and used[0].isdecimal():
        found.append(max(int(limit[0]) - int(used[0]), 0))
    return min(found, default=None)


def read_kib(path: Path | str, field: str) -> int | None:
    """A field of a file such as /proc/meminfo, in KiB; None where the system has none.

    Args:
        path: file such as /proc/meminfo.
        field: name of the field.
    """
    return next((int(line.split()[1]) for line in _lines(path) if line.startswith(field)), None)


def find_device(name: str = "auto") -> torch.device:
    """Device by name, if this machine has it; auto: a CUDA device, else Apple's GPU, else the CPU.

    Of several processes on one machine each takes a CUDA device of its own, unless one is named by its number.

    Args:
        name: auto, cpu, cuda, cuda:1, mps.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        if name == "cuda" and started_together():
            device = torch.device("cuda", local_rank() % max(torch.cuda.device_count(), 1))
            torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as wrong:
        if name.partition(":")[0] not in DEVICES:
            raise BadConfig(f"--device {name}: expected auto, cpu, cuda, cuda:1 or mps") from wrong
        raise BadConfig(f"--device {name}: this machine or this PyTorch has none; use cpu ({str(wrong).splitlines()[0]})") from wrong
    return device


def wait_for(device: torch.device) -> None:
    """Wait until a device has computed everything it was given, to measure time; on the CPU nothing is ever outstanding.

    Args:
        device: device to wait for.
    """
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


@contextlib.contextmanager
def own_chance(device: torch.device) -> Iterator[None]:
    """Leave the random numbers of the CPU and of this device as they were on entry, whatever is drawn or seeded inside.

    Args:
        device: device that numbers are drawn on, besides the CPU.
    """
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield


def free_threads() -> tuple[int, int]:
    """Count the cores that are idle now, by the kernel's counters over a fifth of a second, and all cores.

    Two threads on two cores of which one is busy elsewhere wait for each other: 300 to 730 tokens per second, and one thread 2,400. The load
    average lags behind by a minute: right after another run it made this one take one thread of two idle cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    before, began = _idle_time(), time.monotonic()
    if before:
        time.sleep(SAMPLE)
    after, seconds = _idle_time(), time.monotonic() - began
    busy = sum(max(0.0, 1 - (after[core] - before[core]) / seconds) for core in cores if core in before and core in after)
    return max(1, len(cores) - round(busy)), len(cores)


def _idle_time() -> dict[int, float]:
    """Seconds that each core has been idle since the machine started; empty where the system does not say."""
    fields = [line.split() for line in _lines("/proc/stat") if re.match(r"cpu\d+ ", line)]
    tick = os.sysconf("SC_CLK_TCK") if fields else 1
    return {int(name[3:]): (int(idle) + int(wait)) / tick for name, _, _, _, idle, wait, *_ in fields}


def matmul_speed(device: torch.device, seconds: float = 0.1) -> float:
    """Measure how fast matrices are multiplied, in GFLOP/s of float32, with the threads that PyTorch uses now.

    Args:
        device: device to measure.
        seconds: time to take.
    """
    x = torch.full((SIDE, SIDE), 0.5, device=device)
    y, best = x @ x, math.inf  # the first one is slow
    wait_for(device)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        torch.mm(x, x, out=y)
        wait_for(device)
        best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best / 1e9


def keep_memory() -> bool:
    """Ask glibc to keep freed memory for reuse, process-wide. Returns whether it accepted.

    glibc returns tensors of 32 MiB and more to the system when they are freed, and the system fills every new one with zeros, page by
    page. Linear attention of 16,384 tokens, width 512, with projections, forward + backward, one thread: 3.0 s, and 2.0 s with memory kept
    (348,000 page faults, 22,000). `regard train` and `regard run` call it. Up to 2 GiB of freed memory stay with the process.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def _lines(path: Path | str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


# -- bfloat16 ----------------------------------------------------------------------------------------------------------

CAP = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # no AMX; oneDNN reads it once, before its first kernel
TIMEOUT = 60.0  # seconds; the child needs two or three, most of them to import torch

# 256³ is large enough for the instruction set to decide, not the cost of a call, and small enough for a processor
# that emulates bfloat16: 0.1 s at 0.3 GFLOP/s. One thread: with two on a busy machine the waiting decides, and the
# same processor looked 6 times slower in one run and 2 times faster in the next.
CHILD = """
import json, time
import torch
import torch.nn.functional as F

def seconds(operation, x):
    operation(x)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        operation(x)
        times.append(time.perf_counter() - start)
    return min(times)

torch.manual_seed(0)
torch.set_num_threads(1)
rounded = torch.randn(256, 256).bfloat16()
operations = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "attention": lambda x: F.scaled_dot_product_attention(*(x.view(1, 4, 256, 64),) * 3),
}
measured = {}
for name, operation in operations.items():
    right, got = operation(rounded.float()), operation(rounded).float()
    error = ((got - right).abs().max() / right.abs().max()).item()
    measured[name] = {"error": error, "speed": seconds(operation, rounded.float()) / seconds(operation, rounded)}
print(json.dumps(measured))
"""


@dataclass(frozen=True)
class Bf16:
    """Behaviour of bfloat16 on this machine."""

    usable: bool  # matmuls run, with the cap if one is needed
    faster: bool  # than float32, with the same cap
    needs_cap: bool  # crashes unless ONEDNN_MAX_CPU_ISA is set before the process starts
    note: str  # the finding in words


def bf16(*, refresh: bool = False) -> Bf16:
    """Find out whether bfloat16 works here and is faster; probed once (a few seconds), then read from the user's cache directory.

    Args:
        refresh: probe again, whatever the cache says.
    """
    key = f"probe 1 | {cpu_model()} | torch {torch.__version__} | {CAP[0]}={os.environ.get(CAP[0], '')}"
    known = _read_cache(cache_file())
    if not refresh:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(known.get(key), Bf16)
    answer, sure = _probe()
    if sure:
        _write_cache(cache_file(), known | {key: asdict(answer)})
    return answer


def cache_file() -> Path:
    """File in which the result of the probe is stored."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"  # the XDG specification ignores relative paths
    return root / "regard" / "bf16.json"


def _probe() -> tuple[Bf16, bool]:
    """The result, and whether to store it: a child that could not start says nothing about the processor."""
    measured = _run_child({})
    if isinstance(measured, dict):
        return _conclude(measured, needs_cap=False), True
    if measured < 0 and CAP[0] not in os.environ:
        capped = _run_child({CAP[0]: CAP[1]})
        if isinstance(capped, dict):
            return _conclude(capped, needs_cap=True), True
    if measured < 0:
        name = signal.Signals(-measured).name if -measured in set(signal.Signals) else f"signal {-measured}"
        return Bf16(False, False, False, f"crashes ({name}): not used"), True
    return Bf16(False, False, False, "could not be tried (the child process failed or was too slow): not used"), False


def _conclude(measured: dict[str, dict[str, float]], needs_cap: bool) -> Bf16:
    """The worst operation decides: a model uses all of them."""
    works = f"works only with {CAP[0]}={CAP[1]}" if needs_cap else "works"
    if not all(operation["error"] < 0.05 for operation in measured.values()):  # rounding gives less than 0.01
        return Bf16(False, False, needs_cap, "runs, but its results are wrong: not used")
    name, speed = min(((name, operation["speed"]) for name, operation in measured.items()), key=lambda pair: pair[1])
    if speed > 1:
        return Bf16(True, True, needs_cap, f"{works}, at least {speed:.1f}× as fast as float32")
    slower = 1 / max(speed, 1e-6)
    if slower < 1.05:
        return Bf16(True, False, needs_cap, f"{works}, but no faster than float32: not used")
    return Bf16(True, False, needs_cap, f"{works}, but slower than float32: not used ({name} takes {slower:.{0 if slower >= 10 else 1}f}×)")


def _run_child(extra: dict[str, str]) -> dict[str, dict[str, float]] | int:
    """Return what the child measured, or the return code it ended with (negative: a signal)."""
    try:
        command, env = [sys.executable, "-c", CHILD], os.environ | extra
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 1
    if done.returncode != 0:
        return done.returncode
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return {name: {what: float(operation[what]) for what in ("error", "speed")} for name, operation in found.items()}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return 1


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write_cache(path: Path, known: dict[str, Any]) -> None:
    """Best effort: without a writable cache the probe runs again each time, nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".bf16-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(known, file, indent=1, ensure_ascii=False)
        os.replace(draft, path)  # two processes may ask at the same time
    except OSError:
        return


# -- mixed precision: bfloat16 matmuls in the forward pass; parameters, sums and steps stay in float32 -----------------


def choose_precision(wanted: str, device: torch.device, before: str = "") -> tuple[str, str]:
    """ "float32" or "bfloat16", and a message for the user or "".

    A resumed run keeps what "auto" chose `before` if that is safe here: another precision would lead to other parameters.

    Args:
        wanted: "float32", "bfloat16" or "auto".
        device: device of the model.
        before: precision that a resumed run has used; empty: none.
    """
    if wanted == "float32" or (wanted == "auto" and before == "float32"):
        return "float32", ""
    found = _bf16_on(device)
    safe = found.usable and not found.needs_cap
    if wanted == "bfloat16":
        if not safe:
            remedy = "set that in the environment and start again, or " if found.needs_cap else ""
            raise NotSupported(f"precision bfloat16 on this machine: {found.note}; {remedy}use precision float32, or auto")
        return "bfloat16", ""
    if safe and (found.faster or before == "bfloat16"):
        return "bfloat16", f"precision: bfloat16 ({found.note})"
    return "float32", f"precision: float32 (bfloat16 {found.note})"


@contextlib.contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """Autocast to this precision inside; float32 changes nothing.

    Args:
        precision: "float32" or "bfloat16".
        device: device of the model.
    """
    if precision != "bfloat16":
        yield
        return
    try:
        with torch.autocast(device.type, torch.bfloat16):
            yield
    except RuntimeError as error:
        if "could not create a primitive" in str(error):  # an LSTM on a processor that only imitates bfloat16
            raise NotSupported(f"a layer of this model has no bfloat16 form on this machine; use precision float32 ({error})") from error
        raise


@contextlib.contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Use deterministic algorithms of PyTorch only inside the `with`, and raise where it has none; change nothing if not `on`.

    Args:
        on: False: change nothing.
    """
    if not on:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _bf16_on(device: torch.device) -> Bf16:
    if device.type == "cpu":
        return bf16()
    yes = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return Bf16(yes, yes, False, "works" if yes else "is not in this device's instructions: not used")

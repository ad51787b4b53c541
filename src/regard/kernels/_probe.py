"""Does bfloat16 work on this processor, and is it worth it? Asked in a child process, because the wrong answer kills the process.

On some virtual machines the processor announces matrix tiles that it does not give; PyTorch's library of kernels believes
it, and the first bfloat16 product ends the process with SIGILL. Capping the instruction set before PyTorch starts avoids
that. On processors without bfloat16 instructions the product works, hundreds of times slower than in float32.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

CAP = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # no tiles; read once, when the first kernel is made
TIMEOUT = 60.0  # seconds; the child needs two or three, most of them to import torch

# 256³ is large enough for the instruction set to decide, not the cost of a call, and small enough for a processor
# that emulates bfloat16: 0.1 s at 0.3 GFLOP/s. One thread: with two on a busy machine the waiting decides, and the
# same processor looked 6 times slower in one run and 2 times faster in the next.
CHILD = """
import json, time
import torch
import torch.nn.functional as F

def seconds(product, x):
    product(x)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        product(x)
        times.append(time.perf_counter() - start)
    return min(times)

torch.manual_seed(0)
torch.set_num_threads(1)
rounded = torch.randn(256, 256).bfloat16()
products = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "attention": lambda x: F.scaled_dot_product_attention(*(x.view(1, 4, 256, 64),) * 3),
}
seen = {}
for name, product in products.items():
    right, got = product(rounded.float()), product(rounded).float()
    error = ((got - right).abs().max() / right.abs().max()).item()
    seen[name] = {"error": error, "speed": seconds(product, rounded.float()) / seconds(product, rounded)}
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Bf16:
    """What is known of bfloat16 on this machine."""

    usable: bool  # the products run, with the cap if one is needed
    faster: bool  # than float32, with the same cap
    needs_cap: bool  # dies unless ONEDNN_MAX_CPU_ISA is set before the process starts
    note: str


def bf16(*, refresh: bool = False) -> Bf16:
    """The answer for this processor and this PyTorch; asked once (some seconds), then read from the user's cache directory."""
    key = f"probe 1 | {cpu_model()} | torch {torch.__version__} | {CAP[0]}={os.environ.get(CAP[0], '')}"
    known = _read(cache_file())
    if not refresh and (old := _parsed(known.get(key))) is not None:
        return old
    answer, sure = _ask()
    if sure:
        _write(cache_file(), known | {key: asdict(answer)})
    return answer


def cache_file() -> Path:
    """Where the answer is kept."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # the convention ignores relative paths
    return root / "regard" / "bf16.json"


def cpu_model() -> str:
    """The processor's name for itself."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine() or "unknown"
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())


def _ask() -> tuple[Bf16, bool]:
    """The answer, and whether it is one to keep: a child that could not start tells nothing of the processor."""
    seen = _child({})
    if isinstance(seen, dict):
        return _judge(seen, needs_cap=False), True
    if seen < 0 and CAP[0] not in os.environ:
        capped = _child({CAP[0]: CAP[1]})
        if isinstance(capped, dict):
            return _judge(capped, needs_cap=True), True
    if seen < 0:
        name = signal.Signals(-seen).name if -seen in set(signal.Signals) else f"signal {-seen}"
        return Bf16(False, False, False, f"crashes ({name}): not used"), True
    return Bf16(False, False, False, "could not be tried (the child process failed or was too slow): not used"), False


def _judge(seen: dict[str, dict[str, float]], needs_cap: bool) -> Bf16:
    """The worst of the products decides: a model uses all of them."""
    works = f"works only with {CAP[0]}={CAP[1]}" if needs_cap else "works"
    if not all(product["error"] < 0.05 for product in seen.values()):  # rounding gives less than 0.01
        return Bf16(False, False, needs_cap, "runs, but its results are wrong: not used")
    name, speed = min(((name, product["speed"]) for name, product in seen.items()), key=lambda pair: pair[1])
    if speed > 1:
        return Bf16(True, True, needs_cap, f"{works}, at least {speed:.1f}× as fast as float32")
    slower = 1 / max(speed, 1e-6)
    return Bf16(True, False, needs_cap, f"{works}, but slower than float32: not used ({name} takes {slower:.{0 if slower >= 10 else 1}f}×)")


def _child(extra: dict[str, str]) -> dict[str, dict[str, float]] | int:
    """What the child measured, or the return code it died with (negative: a signal)."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=os.environ | extra,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1
    if done.returncode != 0:
        return done.returncode
    try:
        seen = json.loads(done.stdout.strip().splitlines()[-1])
        return {name: {what: float(product[what]) for what in ("error", "speed")} for name, product in seen.items()}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return 1


def _read(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _parsed(entry: Any) -> Bf16 | None:
    wanted = {"usable": bool, "faster": bool, "needs_cap": bool, "note": str}
    if not isinstance(entry, dict) or any(not isinstance(entry.get(name), kind) for name, kind in wanted.items()):
        return None
    return Bf16(**{name: entry[name] for name in wanted})


def _write(path: Path, known: dict[str, Any]) -> None:
    """Best effort: a home that cannot be written to costs a few seconds each time, nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".bf16-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(known, file, indent=1, ensure_ascii=False)
        os.replace(draft, path)  # two processes may ask at the same time
    except OSError:
        return

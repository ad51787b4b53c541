"""The inside of a child process: `python -m regard.compare.child THREADS MIB`. It answers one line of JSON with another.

    {"call": "package.module:function", "given": {…}}   →   {"gave": …}   or   {"failed": kind, "says": reason}

Kinds: refused (the part cannot do that, and says so), memory (more than allowed), failed (anything else).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..errors import RegardError

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(threads: int, mib: float) -> None:
    """Answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anybody prints must not end up between the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    torch.set_num_threads(threads)
    if mib:
        limit_memory(mib)
    print(json.dumps({"gave": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Call what is asked for; every error becomes an answer."""
    try:
        return {"gave": find(asked["call"])(**asked["given"])}
    except RegardError as error:
        return {"failed": "refused", "says": str(error)}
    except MemoryError:
        return {"failed": "memory", "says": "ran out of the memory it is allowed"}
    except Exception as error:
        if "allocate memory" in str(error):  # PyTorch raises no MemoryError
            return {"failed": "memory", "says": "ran out of the memory it is allowed"}
        traceback.print_exc()
        return {"failed": "failed", "says": f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]}


def find(address: str) -> Any:
    """What "package.module:Name" names."""
    module, _, name = address.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def limit_memory(mib: float) -> None:
    """From here on this process may take so much more; beyond, an allocation fails. Where the system knows no such limit, nothing."""
    held = _status("VmData")
    if held is not None:
        import resource

        with contextlib.suppress(OSError, ValueError):  # a lower limit is already set
            resource.setrlimit(resource.RLIMIT_DATA, (held * 1024 + int(mib * 2**20), -1))


def peak(call: Callable[[], object]) -> float | None:
    """MiB by which this process grows, at the most, over what it held before, while `call` runs; None where nobody knows.

    Linux forgets the old peak when asked. Elsewhere only the peak of the whole life is known: what stays below it goes unseen, and is None.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else memory freed before, and kept, would hide what is taken now
    try:
        CLEAR.write_text("5")
        before = _status("VmHWM")
    except OSError:
        before = None
    if before is not None:
        call()
        after = _status("VmHWM")
        return None if after is None else max(0, after - before) / 1024
    highest = _highest()
    call()
    now = _highest()
    return now - highest if now is not None and highest is not None and now > highest else None


def _status(name: str) -> int | None:
    """A line of /proc/self/status, in KiB."""
    try:
        return next((int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(name)), None)
    except OSError:
        return None


def _highest() -> float | None:
    """The most memory this process ever held, in MiB."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))

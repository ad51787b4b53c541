"""What the C library does with freed memory."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_memory() -> bool:
    """Keep freed memory for what comes next; whether that could be said. For the whole process, so it is yours to call.

    glibc gives tensors from 32 MiB on back to the system when they are freed, and the system fills every new one with zeros, page
    by page. Linear attention of 16,384 tokens, 512 wide, with projections, forward + backward, one thread: 3.0 s so, 2.0 s with memory
    kept (348,000 page faults, 22,000). `regard train` and `regard run` call it. Up to 2 GiB of freed memory stay with the process.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))

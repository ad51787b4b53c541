"""Progress of a long pass over the data, printed to standard error from the fifth second on; a short pass prints nothing."""

from __future__ import annotations

import sys
import time

from ..processes import first_process

EVERY = 5.0  # seconds between two lines


class Pace:
    """Counts bytes: `Pace("tokenizing", total)`, then `add` as they pass. Of several processes the first one speaks."""

    def __init__(self, what: str, total: int = 0):
        self.what, self.total, self.done = what, total, 0
        self.began = self.said = time.monotonic()
        self.silent = not first_process()

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if self.silent or now - self.said < EVERY:
            return
        self.said = now
        rate = self.done / (now - self.began)
        of = f" of {self.total / 1e6:,.0f}" if self.total > self.done else ""
        left = f", {(self.total - self.done) / rate:,.0f} s left" if of and rate else ""
        print(f"{self.what}: {self.done / 1e6:,.0f}{of} MB, {rate / 1e6:.1f} MB/s{left}", file=sys.stderr, flush=True)

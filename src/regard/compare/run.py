"""`compare`: every mechanism in a process of its own, all measured in turn, several times over, so that a disturbance hits all of them.

A process that imports PyTorch takes some 150 MB, so mechanisms are measured in groups, and exact attention goes along with each group:
every ratio is of two measurements of the same minute.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from .. import patterns
from ..attention import MECHANISMS, Attention, SoftmaxAttention
from ..errors import BadConfig, ChildFailed, NotSupported, RegardError, UnknownName
from ..machine import CAP, bf16
from ..train.log import progress_for
from .measure import Timing, free_memory, machine
from .options import CompareOptions
from .process import Child
from .result import EXACT, OPERATIONS, Comparison, Row

MAX_PROCESSES = 16  # alive at once
PROCESS_MIB = 256  # what a process is counted as when memory is short
MIN_TIMEOUT = 5.0  # seconds that a visit may always take
FAIR = 4  # a visit may take this many times its share of the remaining time

Key = tuple[str, int, str]  # mechanism, length, operation
Report = Callable[[str, float], None]  # what is being measured, and the share that is done


def compare(
    mechanisms: Sequence[str | type[Attention]] | None = None, options: CompareOptions | None = None, *, progress: bool = False
) -> Comparison:
    """Measure mechanisms beside exact attention: forward, forward + backward, a decoding step (if causal), peak memory, distance.

    A mechanism that cannot run with these options is in the result, with the reason.

    Args:
        mechanisms: names, or classes of your own that are in a module; None: all of regard's.
        options: lengths, sizes, operations and limits of the measurements.
        progress: show a bar, or lines, on standard error.
    """
    options = options or CompareOptions()
    options.check()
    options = replace(options, lengths=tuple(sorted(set(options.lengths))), threads=options.threads or torch.get_num_threads())
    chosen = _chosen(mechanisms)
    run = _Run(options, _env(options.dtype))
    started = time.monotonic()
    refusals = {name: reason for name, mechanism in chosen.items() if (reason := _refusal(mechanism, options))}
    for name, reason in refusals.items():
        run.cells |= {key: _Cell(status="refused", reason=reason) for key in run.keys(name)}
    with progress_for(progress, silent=not progress, transient=True) as shown:
        run.measure(
            {name: f"{mechanism.__module__}:{mechanism.__qualname__}" for name, mechanism in chosen.items() if name not in refusals},
            shown.update,
        )
    order = list(chosen)
    rows = sorted(run.rows(), key=lambda row: (order.index(row.mechanism), row.length, OPERATIONS.index(row.operation)))
    where = machine(options.threads) + (", processor time" if (options.threads or torch.get_num_threads()) == 1 else "")
    return Comparison(options, tuple(rows), where, time.monotonic() - started, datetime.date.today().isoformat())


@dataclass
class _Cell:
    """Measurements so far of one mechanism at one length and operation."""

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # to exact attention in the same round
    mib: float | None = None
    distance: float | None = None
    status: str = ""  # why it is not tried again
    reason: str = ""


class _Run:
    def __init__(self, options: CompareOptions, env: dict[str, str]):
        self.options, self.env = options, env
        self.deadline: float | None = None  # set when the first processes have started
        self.operations = OPERATIONS if options.causal else OPERATIONS[:2]
        self.cells: dict[Key, _Cell] = {}
        self.visit_seconds: dict[tuple[str, str], dict[int, float]] = {}  # (mechanism, operation) → length → seconds of a whole visit
        self.timeout = max(MIN_TIMEOUT, 60 * options.minutes / 4)
        free = free_memory()
        self.memory = options.memory * 1024 if options.memory else None if free is None else 0.8 * free
        self.group_size = MAX_PROCESSES if free is None else max(2, min(MAX_PROCESSES, int(free / 4 / PROCESS_MIB)))

    def rows(self) -> Iterator[Row]:
        late = f"the time was over before its turn; raise --minutes {self.options.minutes:g}, or give fewer mechanisms or lengths"
        for key, cell in self.cells.items():
            if not cell.seconds:
                yield Row(*key, cell.status or "skipped", cell.reason or late)
                continue
            timing, ratio = Timing.of(cell.seconds), statistics.median(cell.ratios) if cell.ratios else None
            yield Row(*key, "measured", "", timing.median, timing.spread, timing.repeats, ratio, cell.mib, cell.distance)

    def measure(self, addresses: dict[str, str], report: Report) -> None:
        """Measure all mechanisms, group by group."""
        for name in addresses:
            self.cells |= {key: _Cell() for key in self.keys(name)}
        others = [name for name in addresses if name != EXACT]
        groups = [others[n : n + self.group_size - 1] for n in range(0, len(others), self.group_size - 1)] or [[]]
        left = len(others) + len(groups)
        for number, group in enumerate(groups):
            with contextlib.ExitStack() as stack:
                children = {
                    name: stack.enter_context(contextlib.closing(Child(self.options.threads or 1, self.memory, self.env)))
                    for name in (EXACT, *group)
                }
                report(f"starting {len(children)} processes", number / len(groups))
                _start_all(list(children.values()))
                now = time.monotonic()
                self.deadline = self.deadline or now + 60 * self.options.minutes
                until = now + (self.deadline - now) * len(children) / left  # each group has its share of the remaining time
                left -= len(children)
                self._measure_group(
                    children,
                    addresses,
                    until,
                    lambda text, share, n=number: report(text, (n + share) / len(groups)),  # type: ignore[misc]
                )

    def _measure_group(self, children: dict[str, Child], addresses: dict[str, str], until: float, report: Report) -> None:
        count = len(self.options.lengths) * len(children) * len(self.operations)
        for repeat in range(self.options.repeats):
            exact: dict[tuple[int, str], float] = {}
            for n, (name, length, operation) in enumerate(self._round(children)):
                report(f"{name} at {length:,}", (repeat + n / count) / self.options.repeats)
                if repeat and time.monotonic() + self._expected(name, operation, length) > until:
                    continue  # the repeats made so far will do
                seconds = self._visit(children[name], addresses[name], (name, length, operation), until, count - n)
                if seconds is None:
                    continue
                if name == EXACT:
                    exact[length, operation] = seconds
                if (length, operation) in exact:
                    self.cells[name, length, operation].ratios.append(seconds / exact[length, operation])
            if time.monotonic() > until:
                return

    def _round(self, names: dict[str, Child]) -> Iterator[Key]:
        """Exact attention first, then from cheap to expensive: if time runs out, it does for those that are slow anyway."""
        for length in self.options.lengths:
            cost = {name: sum(self._expected(name, operation, length) for operation in self.operations) for name in names}
            for name in sorted(names, key=lambda name: (name != EXACT, cost[name])):
                yield from ((name, length, operation) for operation in self.operations)

    def _visit(self, child: Child, address: str, key: Key, until: float, left: int) -> float | None:
        """Measure once; None if this was not possible, for the reason kept in the cell."""
        (name, length, operation), cell, now = key, self.cells[key], time.monotonic()
        if cell.status or now > until:
            return None
        fair = until - now if name == EXACT else FAIR * (until - now) / left
        timeout = min(self.timeout, max(MIN_TIMEOUT, fair))
        expected = self._expected(name, operation, length)
        if expected > timeout:
            cell.reason = f"it would take about {expected:.0f} s, and a visit may take {timeout:.0f} s; raise --minutes"
            return None
        size = {name: getattr(self.options, name) for name in ("width", "heads", "causal", "dtype", "projections", "seed")}
        size |= {"mechanism": address, "length": length, "batch": self.options.batch_size}
        try:
            found = child.call(f"{__package__}.visit:{operation}", timeout, first=not cell.seconds, **size)
        except ChildFailed as failure:
            if not cell.seconds:
                cell.status, cell.reason = failure.kind, str(failure)
            if failure.kind in ("memory", "time", "died"):
                self._skip_longer(key, failure)
            return None
        self.visit_seconds.setdefault((name, operation), {})[length] = time.monotonic() - now
        cell.seconds.append(found["seconds"])
        cell.mib = found.get("mib", cell.mib)
        cell.distance = found.get("distance", cell.distance)
        return float(found["seconds"])

    def _skip_longer(self, key: Key, failure: ChildFailed) -> None:
        """Skip the longer lengths of what was too much at one length."""
        name, length, operation = key
        for longer in self.options.lengths:
            cell = self.cells[name, longer, operation]
            if longer > length and not cell.seconds and not cell.status:
                cell.status, cell.reason = failure.kind, f"not tried: at {length:,} tokens {failure}"

    def _expected(self, name: str, operation: str, length: int) -> float:
        """Seconds that a visit will take, extrapolated from other lengths by the last exponent; linearly if only one is known."""
        taken = self.visit_seconds.get((name, operation), {})
        if length in taken or not taken:
            return taken.get(length, 0.0)
        *before, (last, seconds) = sorted(taken.items())
        power = 1.0
        if before:
            power = min(max(math.log(seconds / before[-1][1]) / math.log(last / before[-1][0]), 0.0), 3.0)
        return float(seconds * (length / last) ** power)

    def keys(self, name: str) -> list[Key]:
        return [(name, length, operation) for length in self.options.lengths for operation in self.operations]


def _start_all(children: list[Child]) -> None:
    """Start them, as many at once as there are cores."""
    cores = os.cpu_count() or 1
    for n in range(0, len(children), cores):
        for child in children[n : n + cores]:
            child.start()
        for child in children[n : n + cores]:
            with contextlib.suppress(ChildFailed):  # the first call will fail in the same way, with the reason
                child.wait()


def _chosen(mechanisms: Sequence[str | type[Attention]] | None) -> dict[str, type[Attention]]:
    """Classes by name, exact attention first: everything is measured beside it."""
    known = {mechanism.facts.name: mechanism for mechanism in MECHANISMS}
    if isinstance(mechanisms, str):
        mechanisms = [mechanisms]
    chosen: dict[str, type[Attention]] = {EXACT: SoftmaxAttention}
    for one in known if mechanisms is None else mechanisms:
        if isinstance(one, str):
            name = one.lower().replace("-", "_")
            if name not in known:
                raise UnknownName("mechanism", one, known)
            chosen[name] = known[name]
        elif isinstance(one, type) and issubclass(one, Attention):
            if one.__module__ == "__main__" or "<" in one.__qualname__:
                raise BadConfig(f"{one.__qualname__} is not in a module: a process of its own must import it, so put it into one")
            if chosen.setdefault(one.facts.name, one) is not one:
                raise BadConfig(f"two mechanisms are called {one.facts.name!r}; rename one of them in its facts")
        else:
            raise BadConfig(f"{one!r} is not a mechanism; expected a name or a subclass of Attention")
    return chosen


def _refusal(mechanism: type[Attention], options: CompareOptions) -> str:
    """Why it does not support these options, tried on zeros; "" if it does, or if only a trial will tell."""
    length = min(64, options.lengths[0])  # some have a parameter per pair of positions
    head_dim = options.width // options.heads
    x_BLHK = torch.zeros(()).expand(options.batch_size, length, options.heads, head_dim)
    try:
        with torch.random.fork_rng(devices=[]):
            attention = mechanism.sized(heads=options.heads, head_dim=head_dim, length=length)
            gates = {name: x_BLHK[..., :1].expand(shape) for name, shape in attention.gate_shapes(x_BLHK, x_BLHK).items()}
            attention(x_BLHK, x_BLHK, x_BLHK, patterns.causal if options.causal else patterns.full, **gates)
    except RegardError as error:
        return str(error)
    return ""


def _env(dtype: str) -> dict[str, str]:
    """Environment of the children: bfloat16 needs a capped instruction set on some machines, and kills the process on others."""
    if dtype != "bfloat16":
        return {}
    known = bf16()
    if not known.usable:
        raise NotSupported(f"bfloat16 {known.note}; use float32")
    return dict([CAP]) if known.needs_cap else {}

"""`compare`: every mechanism in a process of its own, all asked in turn, again and again, so that what disturbs one disturbs all.

A process that imports PyTorch takes some 150 MB, so mechanisms are taken in groups, and exact attention goes along with each group:
every ratio is of two measurements of the same minute.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from .. import kernels, patterns
from ..attention import MECHANISMS, Attention, SoftmaxAttention
from ..errors import BadConfig, ChildFailed, NotSupported, RegardError, UnknownName
from ..kernels._probe import CAP
from .process import Child
from .result import EXACT, LONGEST, WHAT, Comparison, Row, Settings, spread, whole

TOGETHER = 16  # processes alive at once, at most
EACH = 256  # MiB that one is counted as when memory is short
LEAST_LIMIT = 5.0  # seconds that a visit may always take
FAIR = 4  # times its share of what is left of the time: what a visit may take at the most
TALK = 10.0  # seconds between two lines where there is no terminal

Say = Callable[[str, float], None]  # what is going on, and which share is done
Dtype = Literal["float32", "bfloat16", "float64"]


def compare(
    mechanisms: Sequence[str | type[Attention]] | None = None,
    lengths: int | Sequence[int] = (256, 1024, 4096),
    *,
    width: int = 256,
    heads: int = 4,
    batch: int = 1,
    causal: bool = True,
    dtype: Dtype = "float32",
    projections: bool = False,
    threads: int | None = None,
    repeats: int = 5,
    minutes: float = 2.0,
    memory: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Comparison:
    """Measure mechanisms beside exact attention: forward, forward + backward, a step of decoding (if causal), peak memory, distance.

    mechanisms   names, or classes of your own that a module holds; all if not given. Those that cannot do it are in the result, with the reason
    width        of the model: each of `heads` heads has width / heads
    projections  with `MultiHead` around the mechanism
    threads      of each process; as many as this one uses if not given
    repeats      at most; when `minutes` are over there are fewer, and lengths not yet come to are left out, by name
    memory       GiB that a process may take; four fifths of what is free if not given. A limit on Linux only
    progress     a bar, or lines, on standard error
    """
    settings = Settings(
        lengths=_lengths(lengths), width=width, heads=heads, batch=batch, causal=causal, dtype=dtype, projections=projections,
        threads=torch.get_num_threads() if threads is None else threads, repeats=repeats, minutes=minutes, memory=memory, seed=seed,
    )  # fmt: skip
    settings.check()
    chosen = _chosen(mechanisms)
    run = _Run(settings, _env(dtype))
    started = time.monotonic()
    refused = {name: reason for name, mechanism in chosen.items() if (reason := _refusal(mechanism, settings))}
    for name, reason in refused.items():
        run.refuse(name, reason)
    with _shown(progress) as say:
        run.go({name: _address(mechanism) for name, mechanism in chosen.items() if name not in refused}, say)
    order = list(chosen)
    rows = sorted(run.rows(), key=lambda row: (order.index(row.mechanism), row.length, WHAT.index(row.what)))
    return Comparison(settings, tuple(rows), _machine(settings.threads), time.monotonic() - started)


@dataclass
class _Cell:
    """What is known so far of one mechanism at one length, doing one thing."""

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # to exact attention, measured in the same round
    mib: float | None = None
    distance: float | None = None
    status: str = ""  # why it is not tried again
    reason: str = ""


class _Run:
    def __init__(self, settings: Settings, env: dict[str, str]):
        self.settings, self.env = settings, env
        self.deadline: float | None = None  # the clock starts when the first processes have
        self.what = WHAT if settings.causal else WHAT[:2]
        self.cells: dict[tuple[str, int, str], _Cell] = {}
        self.took: dict[tuple[str, str], dict[int, float]] = {}  # (mechanism, what) → length → seconds of a whole visit
        self.limit = max(LEAST_LIMIT, 60 * settings.minutes / 4)
        free = _free()
        self.memory = settings.memory * 1024 if settings.memory else None if free is None else 0.8 * free
        self.together = TOGETHER if free is None else max(2, min(TOGETHER, int(free / 4 / EACH)))

    def rows(self) -> Iterator[Row]:
        for (name, length, what), cell in self.cells.items():
            if cell.seconds:
                yield Row(
                    name, length, what, "measured", "", _middle(cell.seconds), spread(cell.seconds), len(cell.seconds),
                    _middle(cell.ratios), cell.mib, cell.distance,
                )  # fmt: skip
            else:
                yield Row(name, length, what, cell.status or "late", cell.reason or self._out_of_time())

    def refuse(self, name: str, reason: str) -> None:
        for length in self.settings.lengths:
            for what in self.what:
                self.cells[name, length, what] = _Cell(status="refused", reason=reason)

    def go(self, addresses: dict[str, str], say: Say) -> None:
        """All of them, group by group."""
        for name in addresses:
            for length in self.settings.lengths:
                for what in self.what:
                    self.cells[name, length, what] = _Cell()
        others = [name for name in addresses if name != EXACT]
        groups = [others[n : n + self.together - 1] for n in range(0, len(others), self.together - 1)] or [[]]
        left = len(others) + len(groups)
        for number, group in enumerate(groups):
            with contextlib.ExitStack() as stack:
                children = {
                    name: stack.enter_context(contextlib.closing(Child(self.settings.threads, self.memory, self.env)))
                    for name in (EXACT, *group)
                }
                say(f"starting {len(children)} processes", number / len(groups))
                _wake(list(children.values()))
                now = time.monotonic()
                self.deadline = self.deadline or now + 60 * self.settings.minutes
                until = now + (self.deadline - now) * len(children) / left  # each group has its share of the time that is left
                left -= len(children)
                self._rounds(children, addresses, until, say, number / len(groups), 1 / len(groups))

    def _rounds(self, children: dict[str, Child], addresses: dict[str, str], until: float, say: Say, done: float, share: float) -> None:
        a_round = len(self.settings.lengths) * len(children) * len(self.what)
        for number in range(self.settings.repeats):
            left = a_round
            for length in self.settings.lengths:
                exact: dict[str, float] = {}
                # exact attention first, then the cheap ones: if time runs out, it runs out for those that are slow anyway
                for name in sorted(
                    children, key=lambda name: name != EXACT and sum(self._expected(name, what, length) for what in self.what)
                ):
                    for what in self.what:
                        say(f"{name} at {length:,}", done + share * (number + 1 - left / a_round) / self.settings.repeats)
                        seconds = self._visit(children[name], addresses[name], name, length, what, until, number, left)
                        left -= 1
                        if name == EXACT and seconds is not None:
                            exact[what] = seconds
                        if what in exact and seconds is not None:
                            self.cells[name, length, what].ratios.append(seconds / exact[what])
            if time.monotonic() > until:
                return

    def _visit(self, child: Child, address: str, name: str, length: int, what: str, until: float, number: int, left: int) -> float | None:
        cell = self.cells[name, length, what]
        if cell.status:
            return None
        now, expected = time.monotonic(), self._expected(name, what, length)
        if number and now + expected > until:
            return None  # what is there will do
        if now > until:
            return None
        fair = until - now if name == EXACT else FAIR * (until - now) / left
        limit = min(self.limit, max(LEAST_LIMIT, fair))
        if expected > limit:
            cell.reason = f"it would take about {expected:.0f} s, and a visit may take {limit:.0f} s; give more --minutes"
            return None
        size = {key: getattr(self.settings, key) for key in ("width", "heads", "batch", "causal", "dtype", "projections", "seed")}
        first = not cell.seconds
        try:
            found = child.ask(f"{__package__}.visit:{what}", limit, first=first, mechanism=address, length=length, **size)
        except ChildFailed as failure:
            if not cell.seconds:
                cell.status, cell.reason = failure.kind, str(failure)
            if failure.kind in ("memory", "time", "died"):
                self._bar(name, length, what, failure)
            return None
        self.took.setdefault((name, what), {})[length] = time.monotonic() - now
        cell.seconds.append(found["seconds"])
        cell.mib, cell.distance = found.get("mib", cell.mib), found.get("distance", cell.distance)
        return float(found["seconds"])

    def _bar(self, name: str, length: int, what: str, failure: ChildFailed) -> None:
        """What was too much at one length is not tried at longer ones."""
        for longer in self.settings.lengths:
            cell = self.cells[name, longer, what]
            if longer > length and not cell.seconds and not cell.status:
                cell.status, cell.reason = failure.kind, f"not tried: at {length:,} tokens {failure}"

    def _expected(self, name: str, what: str, length: int) -> float:
        """Seconds a visit will take, from those at other lengths: the last power of the length goes on; linear if only one is known."""
        took = self.took.get((name, what), {})
        if length in took or not took:
            return took.get(length, 0.0)
        *before, (last, seconds) = sorted(took.items())
        power = 1.0
        if before:
            power = min(max(math.log(seconds / before[-1][1]) / math.log(last / before[-1][0]), 0.0), 3.0)
        return float(seconds * (length / last) ** power)

    def _out_of_time(self) -> str:
        return f"the time was over before its turn; give more than --minutes {self.settings.minutes:g}, or fewer mechanisms or lengths"


def _wake(children: list[Child]) -> None:
    """Start them, as many at once as there are cores."""
    cores = os.cpu_count() or 1
    for n in range(0, len(children), cores):
        for child in children[n : n + cores]:
            child.start()
        for child in children[n : n + cores]:
            with contextlib.suppress(ChildFailed):  # it will fail again when it is asked, and say so
                child.wait()


def _lengths(given: int | Sequence[int]) -> tuple[int, ...]:
    """Each once, shortest first."""
    wanted = (given,) if isinstance(given, int) else tuple(given)
    for length in wanted:
        whole("a length", length, 1, LONGEST)
    return tuple(sorted(set(wanted)))


def _chosen(given: Sequence[str | type[Attention]] | None) -> dict[str, type[Attention]]:
    """By name, exact attention first: everything is measured beside it."""
    known = {mechanism.facts.name: mechanism for mechanism in MECHANISMS}
    if isinstance(given, str):
        given = [given]
    found: dict[str, type[Attention]] = {EXACT: SoftmaxAttention}
    for one in known if given is None else given:
        if isinstance(one, str):
            name = one.lower().replace("-", "_")
            if name not in known:
                raise UnknownName("mechanism", one, known)
            found[name] = known[name]
        elif isinstance(one, type) and issubclass(one, Attention):
            if one.__module__ == "__main__" or "<" in one.__qualname__:
                raise BadConfig(
                    f"{one.__qualname__} cannot be measured from here: a process of its own must import it, so put it into a module"
                )
            if found.setdefault(one.facts.name, one) is not one:
                raise BadConfig(f"two mechanisms are called {one.facts.name!r}; give one of them another name in its facts")
        else:
            raise BadConfig(f"a mechanism is a name or a class of Attention, not {one!r}")
    return found


def _address(mechanism: type[Attention]) -> str:
    return f"{mechanism.__module__}:{mechanism.__qualname__}"


def _refusal(mechanism: type[Attention], settings: Settings) -> str:
    """Why it cannot do this at all, asked with tensors that hold nothing; "" if it can, or if only a trial will tell."""
    length = min(64, settings.lengths[0])  # some have a parameter a pair of positions
    head_width = settings.width // settings.heads
    x_BLHK = torch.zeros(()).expand(settings.batch, length, settings.heads, head_width)
    try:
        with torch.random.fork_rng(devices=[]):
            attention = mechanism.sized(heads=settings.heads, width=head_width, length=length)
        attention.check(x_BLHK, x_BLHK, x_BLHK, patterns.causal if settings.causal else patterns.full)
    except RegardError as error:
        return str(error)
    return ""


def _env(dtype: str) -> dict[str, str]:
    """Of the children: bfloat16 needs a cap on some machines, and ends the process on others."""
    if dtype != "bfloat16":
        return {}
    known = kernels.bf16()
    if not known.usable:
        raise NotSupported(f"bfloat16 {known.note}; take float32")
    return dict([CAP]) if known.needs_cap else {}


def _free() -> float | None:
    """MiB of memory that could be had; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable")), None)


def _machine(threads: int) -> str:
    return f"{kernels.cpu_model()}, {threads} {'thread' if threads == 1 else 'threads'}, Python {platform.python_version()}, torch {torch.__version__}"


def _middle(numbers: list[float]) -> float | None:
    return statistics.median(numbers) if numbers else None


@contextlib.contextmanager
def _shown(wanted: bool) -> Iterator[Say]:
    """A function that says what is going on: say(text, share done)."""
    if not wanted:
        yield lambda text, share: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=1.0)
            yield lambda text, share: bar.update(task, description=text, completed=share)
    else:
        last = -math.inf

        def say(text: str, share: float) -> None:
            nonlocal last
            if time.monotonic() - last > TALK:
                last = time.monotonic()
                print(f"{share:4.0%}  {text}", file=sys.stderr, flush=True)

        yield say

"""The result of a comparison: rows, crossover lengths, tables, JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import UnknownName
from .options import CompareOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

EXACT = "softmax"
OPERATIONS = ("forward", "train", "step")
LABELS = {"forward": "forward", "train": "forward + backward", "step": "one step"}
Columns = Literal["time", "memory", "crossover", "distance"]  # groups of columns, one per operation (of distance, one)
SAME_SPEED = 0.05  # ratios this close to 1 are noise on most machines


@dataclass(frozen=True)
class Row:
    """One mechanism at one length and operation: forward, train (forward + backward), or step (of decoding, with a state that long)."""

    mechanism: str  # name of the mechanism
    length: int  # number of tokens
    operation: str  # forward, train or step
    status: str  # measured; or why not: refused, memory, time, died, failed, skipped
    reason: str = ""  # reason why there is no measurement; empty if there is one
    seconds: float | None = None  # the median of the repeats
    spread: float | None = None  # (largest − smallest) / median
    repeats: int = 0  # number of timed repetitions
    ratio: float | None = None  # seconds / seconds of exact attention: the median of pairs measured in the same round
    mib: float | None = None  # peak memory beyond inputs and parameters; for a step, the size of the state
    distance: float | None = None  # ‖o − o*‖ / ‖o*‖, o* of exact attention on the same random q, k, v; in rows of `forward`


@dataclass(frozen=True)
class Crossover:
    """The length from which a mechanism is faster than exact attention.

    always   at every measured length, the shortest of which is `length`
    from     from about `length` (between two measured lengths) up to the longest
    never    not at the longest measured length, `length`
    alike    within 5 % at every measured length
    unknown  one of the two was not measured at any length
    """

    kind: Literal["always", "from", "never", "alike", "unknown"]  # one of the above
    length: float | None = None  # length that it refers to

    def __str__(self) -> str:
        at = "" if self.length is None else f"{self.length:,.0f}"
        return {
            "always": f"always from {at}", "from": f"from about {at}", "never": f"never up to {at}", "alike": "as fast", "unknown": "?",
        }[self.kind]  # fmt: skip


def crossover(ratios: Iterable[tuple[int, float]]) -> Crossover:
    """Find the crossover by linear interpolation between the logarithms of length and ratio.

    Args:
        ratios: pairs of length and seconds / seconds of exact attention, shortest first.
    """
    known = sorted(ratios)
    if not known:
        return Crossover("unknown")
    if all(abs(math.log(ratio)) <= math.log1p(SAME_SPEED) for _, ratio in known):
        return Crossover("alike")
    slower = [n for n, (_, ratio) in enumerate(known) if ratio >= 1]
    if not slower:
        return Crossover("always", known[0][0])
    if slower[-1] == len(known) - 1:
        return Crossover("never", known[-1][0])
    (a, above), (b, below) = known[slower[-1]], known[slower[-1] + 1]
    share = math.log(above) / (math.log(above) - math.log(below))
    return Crossover("from", math.exp(math.log(a) + share * (math.log(b) - math.log(a))))


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: a row per mechanism, length and operation, also for those that could not be measured."""

    options: CompareOptions  # options that it was measured with
    rows: tuple[Row, ...]  # measurements
    machine: str  # description of the machine
    seconds: float  # duration of the whole comparison
    date: str = ""  # when it was measured: YYYY-MM-DD

    @property
    def mechanisms(self) -> list[str]:
        """Exact attention, then the others in the order they were given (by year if none were)."""
        return list(dict.fromkeys(row.mechanism for row in self.rows))

    @property
    def operations(self) -> list[str]:
        """Operations that were measured: forward, train and, if causal, step."""
        return [operation for operation in OPERATIONS if any(row.operation == operation for row in self.rows)]

    @property
    def noise(self) -> float:
        """The median spread of the rows. Above 0.25 something else was running, and small differences mean nothing."""
        return statistics.median([row.spread for row in self.rows if row.spread is not None and row.repeats > 1] or [0.0])

    def row(self, mechanism: str, length: int, operation: str = "forward") -> Row:
        """The row of a mechanism, length and operation.

        Args:
            mechanism: name of the mechanism.
            length: number of tokens.
            operation: forward, train or step.
        """
        found = {(row.mechanism, row.length, row.operation): row for row in self.rows}
        if (mechanism, length, operation) not in found:
            raise UnknownName("row", f"{mechanism}, {length}, {operation}", [", ".join(map(str, key)) for key in found])
        return found[mechanism, length, operation]

    def crossover(self, mechanism: str, operation: str = "forward") -> Crossover:
        """The length from which it beats exact attention on this machine."""
        mine = [row for row in self.rows if row.mechanism == mechanism and row.operation == operation]
        return crossover((row.length, row.ratio) for row in mine if row.ratio is not None)

    def refusals(self) -> list[str]:
        """Measurements that failed: a line per mechanism and reason."""
        grouped: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            if row.status != "measured":
                grouped.setdefault((row.mechanism, row.status, row.reason), []).append(row)
        lines = []
        for (mechanism, status, reason), rows in grouped.items():
            operation = [LABELS[operation] for operation in self.operations if any(row.operation == operation for row in rows)]
            lengths = sorted({row.length for row in rows})
            parts = [] if len(operation) == len(self.operations) else [", ".join(operation)]
            parts += [] if lengths == list(self.options.lengths) else ["at " + ", ".join(f"{length:,}" for length in lengths)]
            where = f" ({' '.join(parts)})" if parts else ""
            lines.append(f"{mechanism}: {STATUS.get(status, status)}{where}: {reason}")
        return lines

    def to_json(self) -> str:
        """Everything; "rows" has the fields of `Row`."""
        crossings = {
            name: {operation: asdict(self.crossover(name, operation)) for operation in self.operations}
            for name in self.mechanisms
            if name != EXACT
        }
        found = {
            "format": "regard.comparison",
            "format_version": 1,
            "machine": self.machine,
            "date": self.date,
            "seconds": self.seconds,
            "options": asdict(self.options),
            "crossovers": crossings,
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(found, indent=1, allow_nan=False)

    def tables(self, width: int) -> list[Table]:
        """Format what `regard compare` prints: all mechanisms at the longest length, and training time by length, if there are several.

        Each table fits `width` columns: it is divided by question, or by length, where it would not.
        """
        lengths, overview = self.options.lengths, [self.table()]
        if _columns(overview[0]) > width:
            overview = [self.table(columns=columns) for columns in (("time",), ("memory", "distance"), ("crossover",))]
        if len(lengths) == 1:
            return overview
        for some in range(len(lengths), 0, -1):
            by_length = [self.by_length(lengths=lengths[n : n + some]) for n in range(0, len(lengths), some)]
            if all(_columns(table) <= width for table in by_length):
                break
        return overview + by_length

    def table(self, length: int | None = None, columns: Sequence[Columns] = ("time", "memory", "crossover", "distance")) -> Table:
        """A rich table of all mechanisms at one length (the longest if not given), fastest to train first; times ± half their spread."""
        length = self.options.lengths[-1] if length is None else length
        table = _table(f"at {length:,} tokens")
        short = {"forward": "forward", "train": "+ backward", "step": "one step"}
        memory = {"forward": "forward", "train": "+ backward", "step": "state"}
        headings: dict[Columns, list[str]] = {
            "time": [f"{short[operation]}\nms" for operation in self.operations],
            "memory": [f"{memory[operation]}\nMiB" for operation in self.operations],
            "crossover": [f"beats exact,\n{short[operation]}" for operation in self.operations],
            "distance": ["distance"],
        }
        for heading in (heading for name in columns for heading in headings[name]):
            table.add_column(heading, justify="right")
        rows = {name: {operation: self.row(name, length, operation) for operation in self.operations} for name in self.mechanisms}
        measured = {name: of for name, of in rows.items() if any(row.seconds is not None for row in of.values())}
        for name, of in sorted(measured.items(), key=lambda pair: pair[1]["train"].seconds or math.inf):
            cells: dict[Columns, list[str]] = {
                "time": [_time(of[operation]) for operation in self.operations],
                "memory": [_number(of[operation].mib) for operation in self.operations],
                "crossover": ["" if name == EXACT else str(self.crossover(name, operation)) for operation in self.operations],
                "distance": [_number(of["forward"].distance)],
            }
            table.add_row(name, *(cell for column in columns for cell in cells[column]), style="bold" if name == EXACT else "")
        return table

    def by_length(self, operation: str = "train", lengths: Sequence[int] = ()) -> Table:
        """A rich table of milliseconds for all mechanisms and lengths (all if none are given), fastest at the longest length first."""
        table, lengths = _table(f"{LABELS[operation]}, ms"), lengths or self.options.lengths
        for length in lengths:
            table.add_column(f"{length:,}", justify="right")
        lines = {name: [self.row(name, length, operation) for length in self.options.lengths] for name in self.mechanisms}
        measured = {name: rows for name, rows in lines.items() if any(row.seconds is not None for row in rows)}
        for name, rows in sorted(measured.items(), key=lambda pair: [row.seconds or math.inf for row in reversed(pair[1])]):
            table.add_row(name, *(_time(row) for row in rows if row.length in lengths), style="bold" if name == EXACT else "")
        return table

    def plot(self, path: str | Path | None = None) -> Figure:
        """Time against length, both logarithmic: a line per mechanism, exact attention bold, crossovers marked; saved if `path`, a .png, is given."""
        from .picture import draw

        return draw(self, path)


STATUS = {"memory": "too much memory", "time": "too slow", "skipped": "not measured"}  # the others are shown by their own name


def _table(title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, box=None, header_style="bold", title_justify="left")
    table.add_column("mechanism", no_wrap=True)
    return table


def _columns(table: Table) -> int:
    """The width of a table in which nothing is wrapped."""
    from rich.console import Console

    return Console(width=10_000).measure(table).maximum


def _time(row: Row) -> str:
    if row.seconds is None:
        return STATUS.get(row.status, row.status)
    return _number(row.seconds * 1e3) + (f" ±{(row.spread or 0) * 50:.0f} %" if row.repeats > 1 else "")


def _number(x: float | None) -> str:
    """Three significant digits."""
    if x is None:
        return ""
    if x == 0 or abs(x) >= 100:
        return f"{x:,.0f}"
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}" if abs(x) >= 1e-3 else f"{x:.0e}"

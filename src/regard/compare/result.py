"""What was found: rows, the lengths from which mechanisms beat exact attention, tables, JSON."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import BadConfig, UnknownName

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

EXACT = "softmax"
WHAT = ("forward", "train", "step")
SAID = {"forward": "forward", "train": "forward + backward", "step": "one step"}
ALIKE = 0.05  # ratios this near to 1 are noise on most machines
DTYPES = ("float32", "bfloat16", "float64")
LONGEST, MOST = 2**20, 2**16  # tokens; width, heads or batch rows


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for."""

    lengths: tuple[int, ...]
    width: int
    heads: int
    batch: int
    causal: bool
    dtype: str
    projections: bool
    threads: int
    repeats: int
    minutes: float
    memory: float | None
    seed: int

    def check(self) -> None:
        """Refuse by name what cannot be measured."""
        if not 1 <= len(self.lengths) <= 32:
            raise BadConfig(f"{len(self.lengths)} lengths: expected 1 to 32 of them, as in --lengths 256 1024 4096")
        for name in ("width", "heads", "batch"):
            whole(name, getattr(self, name), 1, MOST)
        if self.width % self.heads:
            raise BadConfig(f"a width of {self.width} cannot be cut into {self.heads} heads of equal size; choose a divisor")
        if self.dtype not in DTYPES:
            raise UnknownName("dtype", str(self.dtype), DTYPES)
        whole("threads", self.threads, 1, os.cpu_count() or 1)
        whole("repeats", self.repeats, 1, 1000)
        whole("seed", self.seed, 0, 2**62)
        if not 0 < self.minutes <= 7 * 24 * 60:
            raise BadConfig(f"minutes={self.minutes}: expected more than 0, and a week at most")
        if self.memory is not None and not 0 < self.memory < 2**20:
            raise BadConfig(f"memory={self.memory}: expected GiB, more than 0")


@dataclass(frozen=True)
class Row:
    """One mechanism at one length doing one thing: forward, train (forward + backward), or step (of decoding, the state that long)."""

    mechanism: str
    length: int
    what: str
    status: str  # measured; or why not: refused, memory, time, died, failed, late
    reason: str = ""
    seconds: float | None = None  # the median of the repeats
    spread: float | None = None  # (largest − smallest) / median
    repeats: int = 0
    ratio: float | None = None  # seconds to those of exact attention: the median of pairs measured in the same round
    mib: float | None = None  # peak memory over inputs and parameters; of a step: what the state holds
    distance: float | None = None  # ‖o − o*‖ / ‖o*‖, o* of exact attention on the same random q, k, v; in the rows of `forward`


@dataclass(frozen=True)
class Crossover:
    """From which length on a mechanism is faster than exact attention, as far as was measured.

    always   at every measured length, the shortest of which is `length`
    from     from about `length` on, between two measured ones, up to the longest
    never    not at the longest, which is `length`
    alike    within 5 % of it at every length
    unknown  one of the two was not measured at any length
    """

    kind: Literal["always", "from", "never", "alike", "unknown"]
    length: float | None = None

    def __str__(self) -> str:
        at = "" if self.length is None else f"{self.length:,.0f}"
        return {
            "always": f"always from {at}", "from": f"from about {at}", "never": f"never up to {at}", "alike": "as fast", "unknown": "?",
        }[self.kind]  # fmt: skip


def crossover(ratios: Iterable[tuple[int, float]]) -> Crossover:
    """From (length, seconds / seconds of exact attention): straight lines between the logarithms of both."""
    known = sorted(ratios)
    if not known:
        return Crossover("unknown")
    if all(abs(math.log(ratio)) <= math.log1p(ALIKE) for _, ratio in known):
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
    """What `compare` found. `rows` has a row for every mechanism, length and thing done, those that could not be measured too."""

    settings: Settings
    rows: tuple[Row, ...]
    machine: str
    took: float  # seconds

    @property
    def mechanisms(self) -> list[str]:
        """Exact attention, then the others in order of their year."""
        return list(dict.fromkeys(row.mechanism for row in self.rows))

    @property
    def what(self) -> list[str]:
        """What was measured: forward, train, and if causal step."""
        return [what for what in WHAT if any(row.what == what for row in self.rows)]

    @property
    def noise(self) -> float:
        """The spread of a typical row. Beyond a quarter something else was running, and small differences mean nothing."""
        return statistics.median([row.spread for row in self.rows if row.spread is not None and row.repeats > 1] or [0.0])

    def row(self, mechanism: str, length: int, what: str = "forward") -> Row:
        """One of the rows."""
        found = {(row.mechanism, row.length, row.what): row for row in self.rows}
        if (mechanism, length, what) not in found:
            raise UnknownName("row", f"{mechanism}, {length}, {what}", [", ".join(map(str, key)) for key in found])
        return found[mechanism, length, what]

    def crossover(self, mechanism: str, what: str = "forward") -> Crossover:
        """From which length on it beats exact attention on this machine."""
        mine = [row for row in self.rows if row.mechanism == mechanism and row.what == what]
        return crossover((row.length, row.ratio) for row in mine if row.ratio is not None)

    def refusals(self) -> list[str]:
        """What was not measured, a line for each mechanism and reason."""
        grouped: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            if row.status != "measured":
                grouped.setdefault((row.mechanism, row.status, row.reason), []).append(row)
        lines = []
        for (mechanism, status, reason), rows in grouped.items():
            what = [SAID[what] for what in self.what if any(row.what == what for row in rows)]
            lengths = sorted({row.length for row in rows})
            parts = [] if len(what) == len(self.what) else [", ".join(what)]
            parts += [] if lengths == list(self.settings.lengths) else ["at " + ", ".join(f"{length:,}" for length in lengths)]
            where = f" ({' '.join(parts)})" if parts else ""
            lines.append(f"{mechanism}: {HOW[status]}{where}: {reason}")
        return lines

    def to_json(self) -> str:
        """All of it; "rows" has the fields of `Row`."""
        crossings = {name: {what: asdict(self.crossover(name, what)) for what in self.what} for name in self.mechanisms if name != EXACT}
        found = {
            "format": "regard.comparison",
            "format_version": 1,
            "machine": self.machine,
            "took": self.took,
            "settings": asdict(self.settings),
            "crossovers": crossings,
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(found, indent=1, allow_nan=False)

    def table(self, length: int | None = None) -> Table:
        """For rich: all mechanisms at one length, the longest if not given, fastest to train first; times with half their spread."""
        from rich.table import Table

        length = self.settings.lengths[-1] if length is None else length
        table = Table(title=f"at {length:,} tokens", box=None, header_style="bold", title_justify="left")
        table.add_column("mechanism", no_wrap=True)
        short = {"forward": "forward", "train": "+ backward", "step": "one step"}
        heads = [f"{short[what]}\nms" for what in self.what]
        heads += [{"forward": "forward\nMiB", "train": "+ backward\nMiB", "step": "state\nMiB"}[what] for what in self.what]
        heads += [f"beats exact,\n{short[what]}" for what in self.what]
        for head in [*heads, "distance"]:
            table.add_column(head, justify="right")
        rows = {name: {what: self.row(name, length, what) for what in self.what} for name in self.mechanisms}
        measured = {name: of for name, of in rows.items() if any(row.seconds is not None for row in of.values())}
        for name, of in sorted(measured.items(), key=lambda pair: pair[1]["train"].seconds or math.inf):
            crossings = ["" if name == EXACT else str(self.crossover(name, what)) for what in self.what]
            table.add_row(
                name,
                *(_time(of[what]) for what in self.what),
                *(_number(of[what].mib) for what in self.what),
                *crossings,
                _number(of["forward"].distance),
                style="bold" if name == EXACT else "",
            )
        return table

    def by_length(self, what: str = "train") -> Table:
        """For rich: milliseconds of all mechanisms at all lengths, fastest at the longest first."""
        from rich.table import Table

        table = Table(title=f"{SAID[what]}, ms", box=None, header_style="bold", title_justify="left")
        table.add_column("mechanism", no_wrap=True)
        for length in self.settings.lengths:
            table.add_column(f"{length:,}", justify="right")
        lines = {name: [self.row(name, length, what) for length in self.settings.lengths] for name in self.mechanisms}
        measured = {name: rows for name, rows in lines.items() if any(row.seconds is not None for row in rows)}
        for name, rows in sorted(measured.items(), key=lambda pair: [row.seconds or math.inf for row in reversed(pair[1])]):
            table.add_row(name, *(_time(row) for row in rows), style="bold" if name == EXACT else "")
        return table

    def plot(self, path: str | Path | None = None) -> Figure:
        """Time against length, both logarithmic, a line a mechanism, exact attention bold, crossovers marked; written to a .png if asked."""
        from .picture import draw

        return draw(self, path)


HOW = {
    "refused": "refused",
    "memory": "too much memory",
    "time": "too slow",
    "died": "died",
    "failed": "failed",
    "late": "not measured",
}


def spread(numbers: list[float]) -> float:
    """(largest − smallest) / median."""
    return (max(numbers) - min(numbers)) / sorted(numbers)[len(numbers) // 2]


def _time(row: Row) -> str:
    if row.seconds is None:
        return HOW[row.status]
    return _number(row.seconds * 1e3) + (f" ±{(row.spread or 0) * 50:.0f} %" if row.repeats > 1 else "")


def _number(x: float | None) -> str:
    """Three digits that count."""
    if x is None:
        return ""
    return (
        "0"
        if x == 0
        else f"{x:,.0f}"
        if abs(x) >= 100
        else f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}"
        if abs(x) >= 1e-3
        else f"{x:.0e}"
    )


def whole(name: str, x: Any, least: int, most: int) -> None:
    """Refuse what is no whole number from `least` to `most`."""
    if isinstance(x, bool) or not isinstance(x, int) or not least <= x <= most:
        raise BadConfig(f"{name} of {x!r}: expected a whole number from {least:,} to {most:,}")

"""Crossovers and tables from numbers made by hand: nothing is measured here."""

import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from regard import MECHANISMS
from regard.compare import CompareOptions, Comparison, Crossover, Row, crossover
from regard.compare.measure import Timing
from regard.errors import BadConfig, UnknownName

OPTIONS = CompareOptions(lengths=(100, 1000, 10000), width=64, heads=2, causal=False, threads=1, repeats=3, minutes=1.0)


def ratios(*pairs: tuple[int, float]) -> Crossover:
    return crossover(pairs)


def test_a_line_that_crosses_between_two_lengths():
    """Exact attention takes L², the other 1,500·L: ratios 15, 1.5, 0.15, and they meet at 1,500 exactly, logarithms being straight."""
    found = ratios((100, 15.0), (1000, 1.5), (10000, 0.15))
    assert found.kind == "from" and found.length == pytest.approx(1500)
    assert str(found) == "from about 1,500"


def test_where_it_is_always_or_never_faster():
    assert ratios((100, 0.9), (1000, 0.5)) == Crossover("always", 100)
    assert str(ratios((100, 0.9), (1000, 0.5))) == "always from 100"
    assert ratios((100, 3.0), (1000, 2.0)) == Crossover("never", 1000)
    assert str(ratios((100, 3.0), (1000, 2.0))) == "never up to 1,000"
    assert ratios((100, 0.5)) == Crossover("always", 100)
    assert ratios((100, 2.0)) == Crossover("never", 100)


def test_the_last_crossing_counts():
    """Faster, slower, faster: from the second crossing on it stays so. Faster, then slower: it does not."""
    found = ratios((100, 0.5), (1000, 2.0), (10000, 0.5))
    assert found.kind == "from" and found.length == pytest.approx(math.sqrt(1000 * 10000))
    assert ratios((100, 0.5), (1000, 2.0)) == Crossover("never", 1000)
    assert ratios((100, 1.0), (1000, 0.5)) == Crossover("from", pytest.approx(100))  # level at a measured length


def test_noise_is_no_victory():
    assert ratios((100, 1.03), (1000, 0.97)) == Crossover("alike")
    assert ratios((100, 1.03), (1000, 0.9)).kind == "from"
    assert ratios() == Crossover("unknown")


def test_the_order_of_lengths_does_not_matter():
    assert ratios((10000, 0.15), (100, 15.0), (1000, 1.5)) == ratios((100, 15.0), (1000, 1.5), (10000, 0.15))


def test_spread():
    assert Timing.of([2.0, 1.0, 4.0]) == Timing(2.0, 1.5, 3)


@pytest.fixture
def comparison() -> Comparison:
    rows = []
    for length in OPTIONS.lengths:
        for what, slower in (("forward", 1), ("train", 3)):
            exact = slower * length**2 * 1e-7
            rows.append(Row("softmax", length, what, "measured", "", exact, 0.1, 3, 1.0, 1.0, 0.0 if what == "forward" else None))
            other = slower * length * 1.5e-4
            rows.append(Row("linear", length, what, "measured", "", other, 0.1, 3, other / exact, 0.5, 0.25 if what == "forward" else None))
            rows.append(Row("delta", length, what, "refused", "DeltaNet knows `causal`"))
            if length < 10000:
                rows.append(Row("hard", length, what, "measured", "", 2 * exact, 0.1, 3, 2.0, 7.0, 0.9))
            else:
                rows.append(Row("hard", length, what, "memory", "ran out of the memory it is allowed"))
    return Comparison(OPTIONS, tuple(sorted(rows, key=lambda row: row.mechanism != "softmax")), "a machine", 12.0)


def text(table: object) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_what_the_result_says(comparison):
    assert comparison.mechanisms[0] == "softmax" and comparison.operations == ["forward", "train"]
    assert comparison.crossover("linear").length == pytest.approx(1500)
    assert comparison.crossover("hard", "train") == Crossover("never", 1000)
    assert comparison.crossover("delta").kind == "unknown"
    assert comparison.row("linear", 100).distance == 0.25
    assert comparison.noise == 0.1
    with pytest.raises(UnknownName):
        comparison.row("linear", 101)


def test_whatever_was_not_measured_is_named(comparison):
    assert comparison.refusals() == [
        "delta: refused: DeltaNet knows `causal`",
        "hard: too much memory (at 10,000): ran out of the memory it is allowed",
    ]


def test_tables(comparison):
    lines = text(comparison.table()).splitlines()
    assert "10,000" in lines[0] and lines[3].split()[0] == "linear" and lines[4].split()[0] == "softmax"  # the fastest first
    assert "1,500 ±5 %" in lines[3] and "from about 1,500" in lines[3] and "0.250" in lines[3]
    assert not any("delta" in line or "hard" in line for line in lines)
    assert "hard" in text(comparison.table(1000))
    lines = text(comparison.by_length("forward")).splitlines()
    assert [line.split()[0] for line in lines[2:] if line.strip()] == ["linear", "softmax", "hard"]
    assert "too much memory" in lines[4]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_fit_the_terminal_and_cut_nothing(width):
    """All mechanisms, three operations, seven lengths: divided into tables, so that names and numbers stay whole."""
    lengths, names = (64, 256, 1024, 4096, 16384, 65536, 131072), [mechanism.facts.name for mechanism in MECHANISMS]
    rows = [
        Row(name, length, operation, "measured", "", length * 0.123 + n, 0.5, 3, 0.5, 1234.0, 0.1)
        for n, name in enumerate(names)
        for length in lengths
        for operation in ("forward", "train", "step")
    ]
    console = Console(width=width, file=io.StringIO())
    found = Comparison(replace(OPTIONS, lengths=lengths, causal=True), tuple(rows), "a machine", 12.0)
    for table in found.tables(width):
        console.print(table)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width and "…" not in console.file.getvalue()
    tables = [[line.split()[0] for line in lines if line and line[1:2].islower()]]
    assert all(names.count(name) <= tables[0].count(name) for name in names)
    numbers = {number for line in lines for number in re.findall(r"[\d,.]{4,}", line)}
    assert {f"{row.seconds * 1e3:,.0f}" for row in rows if row.operation == "train"} <= numbers


def test_json(comparison):
    found = json.loads(comparison.to_json())
    assert found["format"] == "regard.comparison" and found["format_version"] == 1
    assert len(found["rows"]) == len(comparison.rows)
    assert found["rows"][0] == {
        "mechanism": "softmax", "length": 100, "operation": "forward", "status": "measured", "reason": "", "seconds": pytest.approx(1e-3),
        "spread": 0.1, "repeats": 3, "ratio": 1.0, "mib": 1.0, "distance": 0.0,
    }  # fmt: skip
    assert found["crossovers"]["linear"]["train"] == {"kind": "from", "length": pytest.approx(1500)}


def test_the_picture(comparison, tmp_path):
    figure = comparison.plot(tmp_path / "cost.png")
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    panel = figure.axes[0]
    lines = {line.get_label(): line for line in panel.get_lines()}
    assert {"softmax", "linear", "hard"} <= set(lines) and "delta" not in lines
    assert lines["softmax"].get_linewidth() > 2 * lines["linear"].get_linewidth()
    rings = [line for line in panel.get_lines() if line.get_marker() == "o"]
    assert len(rings) == 1  # where linear comes to stay below: at 1,500 tokens both take 225 ms
    assert (rings[0].get_xdata()[0], rings[0].get_ydata()[0]) == (pytest.approx(1500), pytest.approx(225))
    with pytest.raises(BadConfig, match=r"\.png"):
        comparison.plot(tmp_path / "cost.gif")

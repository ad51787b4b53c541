"""Whole comparisons, as small as they come."""

import json
import os
import sys
from dataclasses import replace

import pytest

from regard.cli import main
from regard.compare import CompareOptions, Comparison, compare
from regard.errors import BadConfig, UnknownName

TINY = CompareOptions(lengths=(16,), width=16, heads=2, threads=1, repeats=1, minutes=200.0)  # minutes it will not take
MODULE = """
import os
from dataclasses import replace
from regard import SoftmaxAttention

class Fragile(SoftmaxAttention):
    facts = replace(SoftmaxAttention.facts, name="fragile")

    def forward(self, q_BLHK, *others, **more):
        if q_BLHK.shape[1] >= 24:
            os.abort()
        return super().forward(q_BLHK, *others, **more)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Comparison:
    """One that fits, one that dies on the way, one that cannot be causal, one that cannot go step by step, one that wants extra numbers."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "fragile_mechanism.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        from fragile_mechanism import Fragile

        return compare(["linear", Fragile, "efficient", "bigbird", "gated-delta"], replace(TINY, lengths=(32, 16, 24), repeats=2))


def test_everything_asked_for_has_a_row(found):
    assert found.mechanisms == ["softmax", "linear", "fragile", "efficient", "bigbird", "gated_delta"]
    assert len(found.rows) == 6 * 3 * 3 and found.options.lengths == (16, 24, 32)


@pytest.mark.parametrize("name", ["softmax", "linear", "gated_delta"])
def test_what_fits_is_measured(found, name):
    for row in (row for row in found.rows if row.mechanism == name):
        assert row.status == "measured" and row.repeats == 2 and row.seconds > 0 and row.spread >= 0, row
        assert (row.distance is not None) == (row.operation == "forward")
        assert row.ratio == 1 if name == "softmax" else row.ratio > 0
    assert found.crossover(name).kind != "unknown"


def test_distance_from_exact_attention(found):
    assert found.row("softmax", 32).distance == 0 and found.row("fragile", 16).distance == 0
    assert 0.05 < found.row("linear", 32).distance < 5


def test_the_state_of_a_stream(found):
    """8 steps at the end of 16 tokens, 2 heads of 8, k and v: the cache doubles when the first of them does not fit."""
    assert found.row("softmax", 16, "step").mib * 2**20 == 2 * 2 * 8 * 4 * 16
    assert found.row("linear", 16, "step").mib == found.row("linear", 32, "step").mib


def test_one_that_dies_is_reported_and_the_rest_goes_on(found):
    row = found.row("fragile", 24)
    assert row.status == "died" and "SIGABRT" in row.reason
    assert found.row("fragile", 32).status == "died" and "not tried" in found.row("fragile", 32).reason
    assert found.row("fragile", 16).repeats == 2
    assert found.row("fragile", 32, "step").status == "measured"  # 16 tokens, then one by one


def test_refusals_are_listed_with_their_reason(found):
    lines = found.refusals()
    assert any(line.startswith("efficient: refused: EfficientAttention supports") for line in lines)
    assert any(line.startswith("bigbird: refused (one step): BigBirdAttention cannot stream") for line in lines)
    assert {line.split(":")[0] for line in lines} == {"efficient", "bigbird", "fragile"}


def test_a_picture_of_it(found, tmp_path):
    assert len(found.plot(tmp_path / "cost.png").axes) == 3


def test_not_causal_with_projections():
    found = compare(["efficient", "delta"], replace(TINY, causal=False, projections=True, batch_size=2))
    assert found.operations == ["forward", "train"]
    assert found.row("efficient", 16, "train").status == "measured" and found.row("efficient", 16).distance > 0
    assert found.row("delta", 16).status == "refused"


def test_when_time_is_over():
    found = compare(["linear"], replace(TINY, lengths=(16, 32), repeats=50, minutes=1e-6))
    assert all(row.status == "skipped" for row in found.rows[1:])  # the first may just have been begun
    assert "--minutes 1e-06" in found.refusals()[0]
    assert found.crossover("linear").kind == "unknown"
    assert found.plot().axes and found.table() and json.loads(found.to_json())


def test_processes_that_cannot_start(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    found = compare(["linear"], TINY)
    assert {row.status for row in found.rows} == {"died"} and "ImportError: broken" in found.rows[0].reason


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"lengths": []}, BadConfig, "1 to 32"),
        ({"lengths": [16, 2**30]}, BadConfig, "1,048,576"),
        ({"lengths": [16.5]}, BadConfig, "integer"),
        ({"lengths": 16}, BadConfig, "1 to 32"),
        ({"width": 16, "heads": 3}, BadConfig, "heads=3"),
        ({"batch_size": 0}, BadConfig, "batch_size=0"),
        ({"dtype": "float8"}, UnknownName, "float"),
        ({"threads": 10**6}, BadConfig, "threads=1000000"),
        ({"repeats": 0}, BadConfig, "repeats=0"),
        ({"minutes": float("inf")}, BadConfig, "minutes=inf"),
        ({"memory": -1.0}, BadConfig, "memory=-1"),
        ({"seed": -1}, BadConfig, "seed=-1"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(given, error, says):
    with pytest.raises(error, match=says):
        compare(options=CompareOptions(**given))


@pytest.mark.parametrize(("given", "error", "says"), [("linea", UnknownName, "linear"), (3, BadConfig, "3 is not a mechanism")])
def test_what_is_no_mechanism_is_refused_at_once(given, error, says):
    with pytest.raises(error, match=says):
        compare([given])


def test_a_class_of_a_script_cannot_be_measured():
    from regard import SoftmaxAttention

    class Here(SoftmaxAttention):
        pass

    with pytest.raises(BadConfig, match="module"):
        compare([Here])


def test_the_command(capsys, tmp_path, monkeypatch):
    sizes = ["--width", "16", "--heads", "2", "--threads", "1", "--repeats", "1", "--minutes", "200", "--quiet"]
    assert main(["compare", "efficient", "--lengths", "8", "--json", "-", *sizes]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert {row["mechanism"] for row in found["rows"]} == {"softmax", "efficient"} and printed.err == ""
    assert (found["options"]["lengths"], found["options"]["width"], found["options"]["minutes"]) == ([8], 16, 200.0)


def test_what_the_command_prints_and_writes(found, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.compare.compare", lambda *given, **more: found)  # measured above
    written, drawn = tmp_path / "new" / "cost.json", tmp_path / "new" / "cost.png"
    assert main(["compare", "linear", "--lengths", "16", "24", "32", "--json", str(written), "--plot", str(drawn)]) == 0
    out = capsys.readouterr().out
    assert "at 32 tokens" in out and "linear" in out and f"wrote {written}" in out and f"wrote {drawn}" in out
    assert json.loads(written.read_text())["options"]["lengths"] == [16, 24, 32] and drawn.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_left_behind(found):
    if sys.platform == "linux":
        mine = [pid for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == os.getpid()]
        assert not [pid for pid in mine if b"regard.compare.process" in _command(pid)]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _command(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""

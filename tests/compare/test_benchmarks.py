"""The benchmarks can start: their modules import, and a peer that is missing is a row, not an error. Nothing is timed here."""

import importlib
import json

import pytest
from benchmarks import _common, mechanisms

from regard.compare.measure import Timing, time_side_by_side


@pytest.fixture(autouse=True)
def idle(tmp_path, monkeypatch):
    monkeypatch.setattr(_common, "_free", _common._cores)
    monkeypatch.setattr(_common, "RECORDS", tmp_path / "results")


@pytest.mark.parametrize(
    "name", ["decoding", "defaults", "exact", "language", "mechanisms", "multi30k", "reading", "serving", "tinyshakespeare", "translation"]
)
def test_it_imports(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_a_section_of_the_page_is_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_common, "RESULTS", tmp_path / "RESULTS.md")
    _common.write("one", ["first"])
    _common.write("two", ["second"])
    _common.write("one", ["third"])
    _common.write("two", ["only printed"], quick=True)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "third" in page and "second" in page and "first" not in page and "only printed" not in page
    for line in ("| a | b | 1 |", "| a | c | 2 |", "| a | b | 3 |"):
        _common.write_row("rows", ["## Rows", ""], "| x | y | z |", line)
    assert (tmp_path / "RESULTS.md").read_text().count("| a |") == 2


def test_a_missing_peer_is_named():
    def theirs(length):
        importlib.import_module("no_such_package")

    pair = mechanisms.Pair("missing", "", "no-such-package", lambda length: mechanisms.Dense(False), theirs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "PAIRS", (pair,))
        found = mechanisms.timed("missing", 8, ["ours", "theirs"], 0.01, 1.0)
    assert found["theirs"] == {"error": "not installed"} and found["ours"]["median"] > 0
    row = mechanisms.Row(pair, 8, found | {"dense": found["ours"]}, {"ours": {"mib": 1.0}, "theirs": {"error": "–"}})
    assert "| not installed |" in str(row) and row.ratio is None


def test_timings():
    assert str(Timing.of([0.001, 0.002, 0.003])) == "2.0 ms ±50 %" and str(Timing.of([0.002])) == "2.0 ms, once"
    calls = []
    found = time_side_by_side({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, min_seconds=0.0)
    assert calls == ["a", "a", "b", "b", "a", "b", "a", "b"] and found["a"].repeats == 2


def test_a_section_says_where_it_comes_from_and_when_the_code_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(_common, "RESULTS", tmp_path / "RESULTS.md")
    _common.write("thing", ["## Thing", "", "| a | b |"])
    page = _common.RESULTS.read_text()
    assert "| a | b |" in page and f"Commit {_common.commit()}" in page and _common.mark() == []
    record = json.loads((tmp_path / "results" / "thing.json").read_text())
    assert record["modules"]["machine.py"] and record["busy_cores"] == 0
    (tmp_path / "results" / "thing.json").write_text(json.dumps(record | {"modules": {"machine.py": "other"}}))
    assert _common.mark() == ["thing"] == _common.mark()
    assert _common.RESULTS.read_text().count(_common.OTHER_CODE) == 1


def test_a_busy_machine_is_not_written_about(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_common, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(_common, "_free", _common._cores - 1)
    with pytest.raises(SystemExit, match="1 of"):
        _common.write("thing", ["line"])
    assert not _common.RESULTS.exists() and "line" in capsys.readouterr().out
    monkeypatch.setenv("BENCH_BUSY", "1")
    _common.write("thing", ["line"])
    assert "cores were busy" in _common.RESULTS.read_text()

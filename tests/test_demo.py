"""The demo: two translators learn, and leave runs that can be used, pictures of their alignments, and a report."""

from dataclasses import replace

import pytest

from regard.cli import main
from regard.cli.demo import run_demo
from regard.tasks import Translation
from regard.train import read_metrics


@pytest.mark.slow
def test_it_learns_and_leaves_runs_and_a_report(tmp_path, capsys, monkeypatch):
    """After a fraction of the steps both must already be better than guessing among 400 tokens (6 nats); the whole demo reaches nearly all."""
    read = Translation.read
    monkeypatch.setattr(Translation, "read", lambda task: replace(read(task), valid=read(task).valid[:50], test=read(task).test[:20]))
    for name in ("transformer", "rnnsearch"):  # what an earlier demo left in the same folder is no hindrance
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    exact = run_demo(tmp_path, steps=60)
    out = capsys.readouterr().out
    assert set(exact) == {"transformer", "rnnsearch"} and "target → source" in out
    for name in exact:
        last = read_metrics(tmp_path / name)[-1]
        assert last["event"] == "final" and last["step"] == 60 and last["loss"] < 5.5
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png") == 3 and "http" not in page
    assert main(["predict", str(tmp_path / "transformer"), "twenty-one"]) == 0
    assert capsys.readouterr().out.strip()
    assert main(["demo", "--out", str(tmp_path), "--steps", "61", "--resume"]) == 0
    assert {read_metrics(tmp_path / name)[-1]["step"] for name in exact} == {61}

"""The demo: two translators learn, and leave runs that can be used, pictures of their alignments, and a report."""

import pytest

from regard.cli import main
from regard.cli.demo import run_demo
from regard.train import read_metrics


@pytest.mark.slow
def test_it_learns_and_leaves_runs_and_a_report(tmp_path, capsys):
    """After a fraction of the steps both must already be better than guessing among 400 tokens (6 nats); the whole demo reaches nearly all."""
    run_demo(tmp_path, steps=1)
    exact = run_demo(tmp_path, steps=60)  # a second demo in the same folder begins anew
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

"""The demo: two translators learn, look across, and leave runs that can be used."""

import json

import pytest

from regard.cli import main
from regard.demo import demo


@pytest.mark.slow
def test_it_learns_and_leaves_runs_and_a_report(tmp_path, capsys):
    """With a fraction of the time both must already be better than guessing among 400 tokens (6 nats); the whole demo reaches nearly all."""
    demo(tmp_path, seconds=0.01)
    exact = demo(tmp_path, seconds=12)  # a second demo in the same folder begins anew
    out = capsys.readouterr().out
    assert set(exact) == {"transformer", "rnnsearch"} and "target → source" in out
    for name in exact:
        *_, last = (json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        assert last["event"] == "final" and last["nats"] < 5.5
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png") == 3 and "http" not in page
    assert main(["predict", str(tmp_path / "transformer"), "twenty-one"]) == 0
    assert capsys.readouterr().out.strip()

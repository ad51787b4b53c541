"""The demo: two translators learn, look across, and leave runs that can be used."""

import pytest

from regard.cli import main
from regard.demo import demo


@pytest.mark.slow
def test_it_learns_and_leaves_runs_and_a_report(tmp_path, capsys):
    """With a fraction of the time it must already be far from guessing; the whole demo reaches nearly all."""
    demo(tmp_path, seconds=0.01)
    exact = demo(tmp_path, seconds=12)  # a second demo in the same folder begins anew
    out = capsys.readouterr().out
    assert set(exact) == {"transformer", "rnnsearch"} and "target → source" in out
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png") == 3 and "http" not in page
    assert main(["predict", str(tmp_path / "transformer"), "twenty-one"]) == 0
    assert capsys.readouterr().out.strip()

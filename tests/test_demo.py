"""The demo: the task is what it says, the model learns it in time, and looks where it should."""

import pytest
import torch

pytest.importorskip("regard.layers")
pytest.importorskip("regard.look")

from regard import demo
from regard.cli import main


def test_the_task():
    ids_BL = demo.batch(50, torch.Generator().manual_seed(0))
    assert ids_BL.shape == (50, 2 * demo.HALF)
    assert ids_BL[:, : demo.HALF].equal(ids_BL[:, demo.HALF :])
    assert all(len(set(row)) == demo.HALF for row in ids_BL.tolist()), "a letter twice would have two continuations"


def test_it_runs_without_training(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "new"), "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    assert "Not solved" in out and str(tmp_path / "new" / "attention.png") in out
    assert (tmp_path / "new" / "attention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_it_is_solved_and_the_head_looks_at_the_letter_that_came_next(tmp_path, capsys):
    assert demo.demo(tmp_path, seconds=60) >= demo.SOLVED
    out = capsys.readouterr().out
    share = int(out.split("On average ")[1].split("%")[0])
    assert share >= 50, out

"""Curves for TensorBoard say what metrics.jsonl says, also after a crash; without the package one sentence says what to do."""

import sys

import pytest
from tiny import Net, Tiny, config, lines

from regard.errors import NotSupported
from regard.train import fit
from regard.train import log as curves


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(NotSupported, match=r"pip install 'regard\[tensorboard\]'"):
        fit(Net(), Tiny(), config(tensorboard=True), tmp_path, progress=False)
    assert not (tmp_path / "state").exists()  # said before anything is done


def read(out):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(out / "tensorboard"))
    found.Reload()
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


class Dies(Tiny):
    """After so many batches."""

    left = 12

    def loss(self, model, batch):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("dead")
        return super().loss(model, batch)


def test_curves_are_the_log(tmp_path):
    pytest.importorskip("tensorboard", reason="an extra: pip install 'regard[tensorboard]'")
    how = {"tensorboard": True, "log_every": 2, "save_every": 5}
    with pytest.raises(RuntimeError, match="dead"):
        fit(Net(), Dies(), config(**how), tmp_path, progress=False)  # step 12 is on the disk, the checkpoint is from step 10
    fit(Net(), Tiny(), config(**how), tmp_path, resume=True, progress=False)
    found = read(tmp_path)
    for event, name in (("train", "loss"), ("train", "norm"), ("train", "lr"), ("evaluation", "error")):
        said = [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines(tmp_path, event)]
        assert found[f"{event}/{name}"] == said
    assert [step for step, _ in found["train/loss"]] == [*range(2, 22, 2), 21]


def test_what_is_not_a_number_is_left_out(tmp_path):
    pytest.importorskip("tensorboard", reason="an extra: pip install 'regard[tensorboard]'")
    board = curves.TensorBoard(tmp_path / "tensorboard")
    board.write("train", {"step": 1, "loss": float("nan"), "lr": 0.5})
    board.write("skip", {"step": 1, "reason": "not finite"})
    board.write("final", {"step": 1, "chosen": "last"})
    board.close()
    assert read(tmp_path) == {"train/lr": [(1, 0.5)]}

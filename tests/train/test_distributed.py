"""Two processes do what one does: same steps, same gradients, same weights; what one cannot take, none takes."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from together import TOGETHER, run

from regard.errors import BadConfig
from regard.train import distributed, launch
from regard.train.log import read

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    run(out)
    return out


@pytest.fixture
def together(monkeypatch):
    paths = [str(HERE), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    return lambda out, kind: launch(2, [str(HERE / "together.py"), str(out), kind], threads=1)


def lines(out, event):
    return [
        {key: x for key, x in line.items() if key != "tokens_per_second"} for line in read(out / "metrics.jsonl") if line["event"] == event
    ]


def same(one, two):
    one, two = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-12, atol=1e-14)


def test_two_are_one_even_when_stopped_between(tmp_path, alone, together):
    """Seven batches, two to a step: at the end of an epoch one process has nothing to do. Dropout is on."""
    assert together(tmp_path, "stopped") == 143
    assert lines(tmp_path, "train")[-1]["step"] == 3
    assert together(tmp_path, "plain") == 0
    same(alone, tmp_path)
    ours, theirs = lines(tmp_path, "train"), lines(alone, "train")
    assert [line["step"] for line in ours] == list(range(1, 13)) and len(theirs) == 12
    for one, two in zip(ours, theirs, strict=True):
        assert one == pytest.approx(two, rel=1e-12)
    assert [line["error"] for line in lines(tmp_path, "evaluation")] == pytest.approx(
        [line["error"] for line in lines(alone, "evaluation")]
    )


def test_what_one_cannot_take_none_takes(tmp_path, together):
    assert together(tmp_path, "spoiled") == 0
    assert [(line["step"], line["reason"]) for line in lines(tmp_path, "skip")] == [(3, "not finite")]
    assert all(x.isfinite().all() for x in load_file(tmp_path / "model.safetensors").values())


def test_when_one_fails_all_end(tmp_path, together, monkeypatch, capfd):
    assert together(tmp_path, "broken") == 1
    assert "broken" in capfd.readouterr().err


def test_shares_cover_every_batch_once():
    for of in (1, 2, 3, 4):
        for size in (1, 2, 5, 8):
            group = list("abcdefgh"[:size])
            shares = [distributed.share(group, mine, of) for mine in range(of)]
            assert len({len(share) for share in shares}) == 1
            counted = sorted((place, item) for share in shares for place, item, counts in share if counts)
            assert counted == list(enumerate(group))


def test_alone_everything_is_trivial():
    assert (distributed.world(), distributed.rank(), distributed.sums([1, 2.5])) == (1, 0, [1, 2.5])
    distributed.barrier()


def test_too_few_batches_to_share(monkeypatch):
    monkeypatch.setattr(distributed, "world", lambda: 4)
    with pytest.raises(BadConfig, match="set accumulate to 4"):
        distributed.parallel(torch.nn.Linear(1, 1), TOGETHER.accumulate)
    with pytest.raises(BadConfig, match="at least 1"):
        launch(0, [])

"""Weights cut over two processes: the same steps as one process takes, the same files, and no other way to go on."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from tiny import Net, Tiny
from together import Deep, lines, run, same, told

from regard.errors import BadConfig
from regard.train import TrainOptions, distributed, launch
from regard.train.parameters import parameters_of

HERE = Path(__file__).parent
KINDS = ("plain", "plain:adam", "plain:radam", "plain:lamb", "plain:deep")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One launch of two processes; before and after it, one process goes on without shards in "mixed"."""
    paths = [str(HERE), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    out = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        run(out / "mixed", **told(["4"]))
        kinds = [
            ("mixed", "plain:full:8"),
            ("spoiled", "spoiled:full"),
            ("plain", "stopped:full:on"),
            *((kind, f"{kind}:full") for kind in KINDS),
        ]
        code = launch(2, [str(HERE / "together.py"), *(word for name, kind in kinds for word in (str(out / name), kind))], threads=1)
        run(out / "mixed", resume=True)
    return {"code": code, "out": out}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same with one process."""

    def made(kind):
        out = tmp_path_factory.mktemp("alone")
        run(out, **told(kind.split(":")[1:]))
        return out

    return made


def test_all_ended_as_they_should(runs):
    assert runs["code"] == 0
    assert [line["step"] for line in lines(runs["out"] / "plain", "resume")] == [3]  # where it was stopped


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_one_process(runs, alone, kind):
    """Weights, losses and norms; running mean, average and best among them. "plain" was stopped and resumed between."""
    ours, theirs = runs["out"] / kind, alone(kind)
    # the gradient of a key's bias is nothing but rounding, which Adam makes as large as any
    same(theirs, ours, atol=1e-9 if kind == "plain:deep" else 1e-14)
    for one, two in zip(lines(ours, "train"), lines(theirs, "train"), strict=True):
        assert one.pop("event") == two.pop("event") and one == pytest.approx(two, rel=1e-11)
    errors = [[line["error"] for line in lines(out, "evaluation")] for out in (ours, theirs)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-11)


def test_files_do_not_know_of_shards(runs, alone):
    states = [out / "state" / "step-00000012" for out in (runs["out"] / "plain", alone("plain"))]
    assert [path.name for path in sorted(states[0].iterdir())] == [path.name for path in sorted(states[1].iterdir())]
    for path in states[1].glob("*.safetensors"):
        ours, theirs = load_file(states[0] / path.name), load_file(path)
        assert ours.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-13)


def test_from_one_process_to_shards_and_back(runs, alone):
    out = runs["out"] / "mixed"
    same(alone("plain"), out)
    assert [line["step"] for line in lines(out, "train")] == list(range(1, 13))


def test_what_one_cannot_take_none_takes(runs):
    out = runs["out"] / "spoiled"
    assert [(line["step"], line["reason"]) for line in lines(out, "skip")] == [(3, "not finite")]
    assert all(x.isfinite().all() for x in load_file(out / "model.safetensors").values())


def test_one_process_has_nothing_to_cut(tmp_path, alone):
    run(tmp_path, **told(["full"]))
    one, two = load_file(tmp_path / "model.safetensors"), load_file(alone("plain") / "model.safetensors")
    assert all(one[name].equal(two[name]) for name in two)


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_layers_are_put_together_one_at_a_time(group):
    from torch.distributed.fsdp import FSDPModule

    deep = Deep(dtype=torch.float64)
    deep.layers[1].linear1.weight = deep.layers[0].linear1.weight  # both use it, so it belongs to neither
    deep.layers.append(torch.nn.TransformerEncoderLayer(5, 1, 3))
    cut = distributed.sharded(Tiny(), deep)
    assert [isinstance(layer, FSDPModule) for layer in (*cut.model.layers, cut.model, cut)] == [False, False, True, False, True]
    assert not any(distributed.is_cut(x) for x in deep.parameters()) and all(distributed.is_cut(x) for x in cut.parameters())
    distributed.empty(deep)
    with distributed.filled(deep, parameters_of(cut.model)):
        assert all(x.equal(y.full_tensor()) for x, y in zip(deep.parameters(), cut.model.parameters(), strict=True))
    assert sum(x.numel() for x in deep.parameters()) == 0


def test_a_single_number_cannot_be_cut(group):
    net = Net()
    net.gain = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(BadConfig, match="gain is a scalar"):
        distributed.sharded(Tiny(), net)


def test_what_does_not_go_together():
    for changes, said in (
        ({"optimizer": "adafactor"}, "adafactor.*adamw"),
        ({"optimizer": "muon"}, "muon.*adamw"),
        ({"compile": True}, "compile"),
        ({"sharding": "some"}, "none, full"),
    ):
        with pytest.raises(BadConfig, match=said):
            TrainOptions(**{"steps": 1, "sharding": "full", **changes})

"""One process of several: trains the tiny task and, being the first, leaves a file of what came of it. And what tests compare."""

import dataclasses
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tiny import FAST, Net, Tiny
from torch import nn

from regard.errors import Interrupted
from regard.train import OPTIMIZERS, TrainOptions, fit
from regard.train.distributed import joined
from regard.train.log import read_metrics

TOGETHER = TrainOptions(**FAST | {"average": 2}, epochs=3, log_every=1, save_every=2, accumulate=2, ema=0.9)


class Deep(Net):
    """Two layers before the rest, which shards put together one at a time."""

    def __init__(self, dtype):
        super().__init__(dtype=dtype)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(5, 1, 3, dropout=0.2, batch_first=True, dtype=dtype) for _ in range(2))

    def forward(self, x):
        x = x.unsqueeze(0)
        for layer in self.layers:
            x = layer(x)
        return super().forward(x.squeeze(0))


def run(out, task=None, resume=False, config=TOGETHER, net=Net):
    net = net(dtype=torch.float64)
    return net, fit(net, task or Tiny(dtype=torch.float64), config, out, resume=resume, progress=False)


def told(words):
    """ "full", "deep", "lamb", "4": shards, a deep net, an optimiser, steps → what `run` takes. "on": see below."""
    changes, net = {}, Net
    for word in words:
        if word == "full":
            changes["sharding"] = word
        elif word == "deep":
            net = Deep
        elif word in OPTIMIZERS:
            changes["optimizer"] = word
        elif word != "on":
            changes |= {"epochs": None, "steps": int(word)}
    return {"config": dataclasses.replace(TOGETHER, **changes), "net": net}


class Spoiled(Tiny):
    """The second process, and only it, meets something that is not a number."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.calls = getattr(self, "calls", 0) + 1
        if os.environ.get("RANK") == "1" and self.calls == 3:
            return type(loss)(loss.total * float("nan"), loss.count, loss.extra)
        return loss


class Stopped(Tiny):
    """The second process, and only it, is asked to stop."""

    def loss(self, model, batch):
        self.calls = getattr(self, "calls", 0) + 1
        if os.environ.get("RANK") == "1" and self.calls == 3:
            os.kill(os.getpid(), 15)
        return super().loss(model, batch)


class Broken(Tiny):
    """The second process, and only it, fails; the first must not wait for ever."""

    def loss(self, model, batch):
        if os.environ.get("RANK") == "1":
            raise RuntimeError("broken")
        return super().loss(model, batch)


def first(net):
    """What the first process holds: all must hold it."""
    tensors = [tensor.clone() for tensor in net.state_dict().values()]
    for tensor in tensors:
        torch.distributed.broadcast(tensor, 0)
    return tensors


def lines(out, event):
    return [
        {key: x for key, x in line.items() if key != "tokens_per_second"}
        for line in read_metrics(out / "metrics.jsonl")
        if line["event"] == event
    ]


def same(one, two, atol=1e-14):
    one, two = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-12, atol=atol)


KINDS = {"plain": Tiny, "spoiled": Spoiled, "stopped": Stopped, "broken": Broken}


def pretend_gpu():
    """Let PyTorch say that there is a GPU. NCCL is not in this build: what would use it is left out, so a GPU's tensor would fail."""
    real = torch.distributed.init_process_group

    def begin(backend, **options):
        kinds = dict(one.split(":") for one in backend.split(","))
        assert kinds == {"cpu": "gloo", "cuda": "nccl"}
        real("cpu:gloo", **options)

    torch.cuda.is_available, torch.distributed.init_process_group = lambda: True, begin


if __name__ == "__main__":  # folder, kind, folder, kind, …: one after the other, because starting takes longer than training
    torch.set_num_threads(1)
    if "GPU" in os.environ:
        pretend_gpu()
    with joined():
        for out, kind in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
            kind, *words = kind.split(":")
            try:
                net, _ = run(Path(out), KINDS[kind](dtype=torch.float64), resume=True, **told(words))
                assert all(x.equal(y) for x, y in zip(net.state_dict().values(), first(net), strict=True))
            except Interrupted as stop:
                if "on" not in words:  # to the next folder
                    sys.exit(stop.code)

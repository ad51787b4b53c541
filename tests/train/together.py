"""One process of several: trains the tiny task and, being the first, leaves a file of what came of it."""

import os
import sys
from pathlib import Path

import torch
from tiny import Net, Tiny

from regard.errors import Interrupted
from regard.train import AdamW, Budget, Constant, Every, TrainConfig, fit
from regard.train.distributed import joined

TOGETHER = TrainConfig(
    budget=Budget(epochs=3), optimizer=AdamW(), schedule=Constant(peak=0.01), every=Every(log=1, save=2), accumulate=2, ema=0.9, average=2
)


def run(out, task=None, resume=False, config=TOGETHER):
    net = Net(dtype=torch.float64)
    return net, fit(net, task or Tiny(dtype=torch.float64), config, out, resume=resume, progress=False)


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


KINDS = {"plain": Tiny, "spoiled": Spoiled, "stopped": Stopped, "broken": Broken}

if __name__ == "__main__":  # folder, kind, folder, kind, …: one after the other, because starting takes longer than training
    torch.set_num_threads(1)
    with joined():
        for out, kind in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
            try:
                run(Path(out), KINDS[kind](dtype=torch.float64), resume=True)
            except Interrupted as stop:
                sys.exit(stop.code)

"""A task of seconds that has everything that can go wrong: ragged batches, dropout, chance in three libraries, tied weights, a buffer."""

import random

import numpy as np
import torch
from torch import nn

from regard.train import Loss, Metric, Objective, TrainOptions
from regard.train.log import read_metrics
from regard.train.parameters import parameters_of


class Net(nn.Module):
    """Input and output share a matrix; a counter is a buffer; dropout needs the random state."""

    def __init__(self, width=5, hidden=7, dropout=0.3, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(11)
        self.read = nn.Linear(width, hidden, dtype=dtype)
        self.write = nn.Linear(width, hidden, bias=False, dtype=dtype)
        self.write.weight = self.read.weight
        self.norm = nn.LayerNorm(hidden, dtype=dtype)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("scale", torch.ones(3, dtype=dtype))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.drop(self.norm(torch.tanh(self.read(x)))) @ self.write.weight


class Tiny(Objective):
    """Rows of a linear map with noise; batches of 1 to 6 rows, in an order of the epoch."""

    metric = Metric("error", higher=False)

    def __init__(self, batches=7, seed=3, noise=True, dtype=torch.float32):
        self.seed, self.noise = seed, noise
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.randint(1, 7, (batches,), generator=generator).tolist()
        self.x = [torch.randn(size, 5, generator=generator, dtype=dtype) for size in sizes]
        turn = torch.randn(5, 5, generator=generator, dtype=dtype)
        self.y = [x @ turn for x in self.x]

    def batches(self, epoch):
        return random.Random(f"{self.seed}/{epoch}").sample(range(len(self.x)), len(self.x))

    def batch(self, item, generator):
        x, y = self.x[item], self.y[item]
        return (x + 0.01 * torch.randn(x.shape, generator=generator, dtype=x.dtype) if self.noise else x), y

    def loss(self, model, batch):
        x, y = batch
        if self.noise and model.training:  # from all three libraries: after a crash each must stand where it stood
            x = x * (1 + 0.01 * random.random()) + 0.01 * float(np.random.rand()) + 0.01 * torch.randn_like(x)
        error = (model(x) - y) ** 2
        return Loss(error.sum(), len(x), {"rows": float(len(x))})

    def evaluate(self, model):
        assert not model.training and not torch.is_grad_enabled()
        error = sum(float(((model(x) - y) ** 2).sum()) for x, y in zip(self.x, self.y, strict=True))
        return {"error": error / sum(map(len, self.x)), "chance": float(torch.rand(()))}


class Big(Tiny):
    """The same rows, `group` batches at a time put into one."""

    def __init__(self, group, **kwargs):
        super().__init__(**kwargs)
        self.group = group

    def batches(self, epoch):
        order = super().batches(epoch)
        return [order[n : n + self.group] for n in range(0, len(order), self.group)]

    def batch(self, item, generator):
        parts = [super(Big, self).batch(one, generator) for one in item]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


FAST = {"schedule": "constant", "lr": 0.01, "warmup_steps": 0, "average": 0}


def config(**changes):
    budget = {} if {"steps", "epochs", "minutes"} & changes.keys() else {"epochs": 3}
    return TrainOptions(**budget | FAST | {"log_every": 2} | changes)


def lines(out, event):
    return [line for line in read_metrics(out / "metrics.jsonl") if line["event"] == event]


def same(one, two, exactly=True):
    for (name, a), b in zip(parameters_of(one).items(), parameters_of(two).values(), strict=True):
        assert torch.equal(a, b) if exactly else torch.allclose(a, b, rtol=1e-9, atol=1e-11), name

"""Where training runs: batches go to the device whatever they are made of, and threads are those that are free."""

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard import machine
from regard.train.objective import to_device


@dataclass(frozen=True)
class Batch:
    ids_BL: Tensor
    n_B: Tensor | None
    size: int


class Pair(NamedTuple):
    one: Tensor
    two: list[Tensor]


def test_batches_go_to_the_device():
    x = torch.zeros(2, 3)
    meta = torch.device("meta")
    found = to_device({"batch": Batch(x, None, 3), "pair": Pair(x, [x]), "name": "x"}, meta)
    assert found["batch"].ids_BL.device == meta and found["batch"].n_B is None and found["batch"].size == 3
    assert found["pair"].one.device == found["pair"].two[0].device == meta and found["name"] == "x"
    batch = Batch(x, None, 3)
    assert to_device(batch, torch.device("cpu")) is batch  # nothing is copied where nothing moves


@pytest.mark.parametrize(
    ("idle", "free"),
    [
        ([1, 1, 1, 1], 4),
        ([0.7, 0.9, 0.8, 0.9], 3),  # a thread that moves between cores
        ([1, 0, 1, 1], 3),
        ([0.1, 0, 0, 0], 1),
        ([1, 1], 4),  # what the system does not say counts as free
    ],
)
def test_threads_are_the_cores_that_are_idle_now(idle, free, monkeypatch):
    moments = iter([0.0, 1.0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(machine, "_idle_time", lambda: idle_times.pop(0))
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=lambda: next(moments), sleep=lambda seconds: None))
    idle_times = [dict.fromkeys(range(len(idle)), 10.0), {core: 10.0 + seconds for core, seconds in enumerate(idle)}]
    assert machine.free_threads() == (free, 4)


def test_threads_of_a_system_that_counts_nothing(monkeypatch):
    monkeypatch.setattr(machine, "_lines", lambda path: [])
    free, cores = machine.free_threads()
    assert free == cores

"""Where training runs: batches go to the device whatever they are made of, and threads are those that are free."""

import os
from dataclasses import dataclass
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


@pytest.mark.parametrize(("load", "free"), [(0.0, 4), (0.4, 4), (1.1, 3), (3.9, 1), (50.0, 1)])
def test_threads_are_the_free_cores(load, free, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert machine.free_threads() == (free, 4)

"""Several processes that train one model: each takes its share of every step's batches, and their gradients are added.

    one process:   g = g₁ + g₂ + g₃ + g₄                     step with g / (number of tokens in all four)
    two:           g₁ + g₃   and   g₂ + g₄, added together   step with the same g over the same number

So the number of processes changes the time a step takes and nothing else. Start them with `launch`, or with torchrun on many machines;
without either, everything here is the trivial case of one process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import BadConfig
from .task import Loss, Task

Item = TypeVar("Item")


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is; the first, 0, writes files and talks."""
    return dist.get_rank() if world() > 1 else 0


def barrier() -> None:
    """Wait for the others."""
    if world() > 1:
        dist.barrier()


def sums(numbers: Sequence[float], device: torch.device | None = None) -> list[float]:
    """Each number added over all processes, in float64."""
    if world() == 1:
        return list(numbers)
    total = torch.tensor(list(numbers), dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(number) for number in total.tolist()]


@contextmanager
def joined() -> Iterator[None]:
    """Join the processes that `launch` or torchrun has announced in the environment, and leave them at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    # the first process evaluates while the others wait, which may take longer than the half hour they wait by default
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(hours=12))
    try:
        yield
    finally:
        dist.destroy_process_group()


def share(group: Sequence[Item], mine: int, of: int) -> list[tuple[int, Item, bool]]:
    """(place in the group, item, whether it counts) for one process: every `of`-th.

    All processes must do the same number of passes. Where a group is too short for that, its first item is done again and counts nothing.
    """
    rounds = -(-len(group) // of)
    places = [mine + of * n for n in range(rounds)]
    return [(place, group[place], True) if place < len(group) else (0, group[0], False) for place in places]


class Objective(nn.Module):
    """A task's loss as a module, so that PyTorch's wrapper for many processes may stand around it, whichever methods the task calls."""

    def __init__(self, task: Task, model: nn.Module):
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Any) -> tuple[Tensor, Loss]:
        loss = self._task.loss(self.model, batch)
        return loss.total, loss  # the tensor for itself too: the wrappers look for tensors, and not inside other values


def parallel(objective: nn.Module, accumulate: int) -> nn.Module:
    """The objective itself for one process or with shards; else one whose backward pass adds the gradients of all processes while it runs."""
    if world() == 1:
        return objective
    if accumulate < world():
        raise BadConfig(f"{world()} processes cannot share a step of {accumulate} batch(es); set accumulate to {world()} or a multiple")
    if hasattr(objective, "set_requires_gradient_sync"):  # `sharding` has taken care of it
        return objective
    wrapped = DistributedDataParallel(objective)
    wrapped.register_comm_hook(None, lambda state, bucket: _add(bucket.buffer()))
    return wrapped


@contextmanager
def adding(objective: nn.Module, now: bool) -> Iterator[None]:
    """A backward pass inside adds up with those of the other processes now, or waits for a later one that does."""
    if hasattr(objective, "set_requires_gradient_sync"):
        objective.set_requires_gradient_sync(now)  # type: ignore[operator]  # of FSDPModule, whose import takes half a second
    if isinstance(objective, DistributedDataParallel) and not now:
        with objective.no_sync():
            yield
    else:
        yield


def _add(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Sums, not the means that DDP takes by itself: tokens are counted, not processes."""
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def launch(processes: int, argv: Sequence[str], threads: int | None = None) -> int:
    """Run `python *argv` so many times on this machine, joined over the loopback; the exit code of the first that fails, or 0.

    Signals are handed on. When one process ends badly the others are ended too: alone they would wait for ever.
    """
    if processes < 1:
        raise BadConfig(f"{processes} processes were asked for; expected at least 1")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": str(threads or os.environ.get("OMP_NUM_THREADS") or max(1, cores // processes)),
    }
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else a host name that cannot be resolved stops it
    ranks = [{"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(processes)]
    running = [subprocess.Popen([sys.executable, *argv], env={**environment, **one}) for one in ranks]

    def hand_on(number: int, frame: FrameType | None) -> None:
        for process in running:
            process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(running)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(running: Sequence[subprocess.Popen[bytes]], grace: float = 10.0) -> int:
    """Until all have ended, or one badly and the others not within the grace."""
    code, deadline = 0, float("inf")
    while any(process.poll() is None for process in running) and time.monotonic() < deadline:
        bad = next((process.returncode for process in running if process.returncode), 0)
        if bad and not code:
            code, deadline = bad, time.monotonic() + grace
        time.sleep(0.02)
    code = code or next((process.returncode for process in running if process.returncode), 0)
    return 128 - code if code < 0 else code  # killed by a signal: as a shell says it


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

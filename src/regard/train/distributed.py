"""Data-parallel training: each process takes its share of every step's batches, and their gradients are summed.

    one process:   g = g₁ + g₂ + g₃ + g₄                     step with g / (number of tokens in all four)
    two:           g₁ + g₃   and   g₂ + g₄, summed           step with the same g over the same number

So the number of processes changes the time per step and nothing else. Start them with `launch`, or with torchrun on many machines;
without either, everything here is the trivial case of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import BadConfig
from .launcher import stop_with_launcher
from .task import Loss, Task

Item = TypeVar("Item")


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process; rank 0 writes files and reports."""
    return dist.get_rank() if world() > 1 else 0


def barrier() -> None:
    """Wait for the others."""
    if world() > 1:
        dist.barrier()


def sums(numbers: Sequence[float], device: torch.device | None = None) -> list[float]:
    """Each number summed over all processes, in float64."""
    if world() == 1:
        return list(numbers)
    total = torch.tensor(list(numbers), dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(number) for number in total.tolist()]


@contextmanager
def joined() -> Iterator[None]:
    """Join the process group that `launch` or torchrun has set up in the environment; leave it at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    stop_with_launcher()
    # rank 0 evaluates while the others wait, which may take longer than the default timeout of half an hour
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(hours=12))
    try:
        yield
    finally:
        dist.destroy_process_group()


def share(group: Sequence[Item], mine: int, of: int) -> list[tuple[int, Item, bool]]:
    """(index in the group, item, whether it counts) for one process: every `of`-th.

    All processes must run equally many backward passes. Where a group is too short, its first item is repeated with weight 0.
    """
    rounds = -(-len(group) // of)
    indices = [mine + of * n for n in range(rounds)]
    return [(n, group[n], True) if n < len(group) else (0, group[0], False) for n in indices]


class Objective(nn.Module):
    """A task's loss as a module, which DistributedDataParallel can wrap whichever methods of the model the task calls."""

    def __init__(self, task: Task, model: nn.Module):
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Any) -> tuple[Tensor, Loss]:
        loss = self._task.loss(self.model, batch)
        return loss.total, loss  # the tensor separately too: the wrappers look for tensors, not inside other values


def parallel(objective: nn.Module, accumulate: int) -> nn.Module:
    """The objective itself for one process or when sharded; otherwise wrapped, so that backward sums gradients over all processes."""
    if world() == 1:
        return objective
    if accumulate < world():
        raise BadConfig(f"accumulate={accumulate} with {world()} processes; set accumulate to {world()} or a multiple")
    if hasattr(objective, "set_requires_gradient_sync"):  # sharded: FSDP reduces the gradients
        return objective
    wrapped = DistributedDataParallel(objective)
    wrapped.register_comm_hook(None, lambda state, bucket: _add(bucket.buffer()))
    return wrapped


@contextmanager
def adding(objective: nn.Module, now: bool) -> Iterator[None]:
    """Whether backward passes inside sum gradients over the processes now, or leave that to a later one."""
    if hasattr(objective, "set_requires_gradient_sync"):
        objective.set_requires_gradient_sync(now)  # type: ignore[operator]  # of FSDPModule, whose import takes half a second
    if isinstance(objective, DistributedDataParallel) and not now:
        with objective.no_sync():
            yield
    else:
        yield


def _add(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Sums, not DDP's means: the loss is per token, not per process."""
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future

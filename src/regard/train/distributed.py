"""Data-parallel training: each process takes its share of every step's batches, and their gradients are summed.

    one process:   g = g₁ + g₂ + g₃ + g₄                     step with g / (number of tokens in all four)
    two:           g₁ + g₃   and   g₂ + g₄, summed           step with the same g over the same number

So the number of processes changes the time per step and nothing else. Start them with `launch`, or with torchrun on many machines;
without either, everything here is the trivial case of one process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import BadConfig
from .task import Loss, Objective

Item = TypeVar("Item")
SAVE_SECONDS = 3600  # that processes have to finish their step and save when asked to stop


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


class LossModule(nn.Module):
    """A task's loss as a module, which DistributedDataParallel can wrap whichever methods of the model the task calls."""

    def __init__(self, task: Objective, model: nn.Module):
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


def launch(processes: int, argv: Sequence[str], threads: int | None = None) -> int:
    """Run `python *argv` in `processes` processes on this machine, by torchrun's launcher; the exit code of the first that fails, or 0.

    Signals are passed on, and the processes may finish their step and save; a second signal ends them at once. When one process fails, the
    others are ended too. A process killed by a signal counts as 128 + its number, as in a shell.
    """
    if processes < 1:
        raise BadConfig(f"{processes} processes: expected at least 1")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1",
        run_id=f"regard-{os.getpid()}", max_restarts=0, shutdown_timeout=SAVE_SECONDS,
        signals_to_handle="SIGINT,SIGTERM",
    )  # fmt: skip
    threads = threads or int(os.environ.get("OMP_NUM_THREADS") or max(1, _cores() // processes))
    with _launcher_state(threads):
        try:
            elastic_launch(config, sys.executable)(*argv)
        except ChildFailedError as error:
            code = int(error.get_first_failure()[1].exitcode)
            return 128 - code if code < 0 else code
        except SignalException as stopped:
            return 128 + int(stopped.sigval)
    return 0


@contextmanager
def _launcher_state(threads: int) -> Iterator[None]:
    """Variables for the children; afterwards they, the signal handlers and the log level, which the launcher changes, are as before."""
    environment, disabled = dict(os.environ), logging.root.manager.disable
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host name that cannot be resolved would stop gloo
    logging.disable(logging.ERROR)  # the processes report their errors themselves
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        logging.disable(disabled)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

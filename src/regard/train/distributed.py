"""Training in several processes: each takes its share of every step's batches, and their gradients are summed.

    one process:   g = g₁ + g₂ + g₃ + g₄                     step with g / (number of tokens in all four)
    two:           g₁ + g₃   and   g₂ + g₄, summed           step with the same g over the same number

So the number of processes changes the time per step and nothing else. Start them with `launch`, or with torchrun on many machines;
without either, everything here is the trivial case of one process.

With sharding every process keeps a shard of each parameter, its gradient and optimizer state; a layer is gathered while it runs.

    bytes per process, N processes, Ψ parameters in float32:   parameters 4Ψ/N   gradients 4Ψ/N   Adam's two moments 8Ψ/N
    with copies in every process instead:                      parameters 4Ψ     gradients 4Ψ     Adam's two moments 8Ψ

This is ZeRO's third stage (Rajbhandari et al. 2020, arXiv:1910.02054), PyTorch's `fully_shard`. Averages of parameters are sharded
alike. Evaluations and checkpoints use whole tensors, gathered one after the other on rank 0: files do not depend on sharding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import BadConfig
from ..layers import Block
from ..processes import world_size
from .launcher import stop_with_launcher
from .objective import Loss, Objective

if TYPE_CHECKING:  # half a second to import, for nothing where one process trains
    from torch.distributed.tensor import DTensor

Item = TypeVar("Item")
LAYERS = (Block, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # gathered one at a time; the rest of a model at once


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process; rank 0 writes files and reports."""
    return dist.get_rank() if world() > 1 else 0


def gather(items: Sequence[Item]) -> list[Item]:
    """Items of all processes, those of rank 0 first; between the processes of one training, never from a file."""
    if world() == 1:
        return list(items)
    parts: list[list[Item] | None] = [None] * world()
    dist.all_gather_object(parts, list(items))
    return [item for part in parts if part is not None for item in part]


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
    if world_size() == 1 or dist.is_initialized():
        yield
        return
    stop_with_launcher()
    # rank 0 evaluates while the others wait, which may take longer than the default timeout of half an hour
    # numbers of the CPU are added up, too, and a machine with a GPU may train on the CPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(hours=12))
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
    """Loss of an objective as a module, which DistributedDataParallel can wrap whichever methods of the model are called."""

    def __init__(self, objective: Objective, model: nn.Module):
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, batch: Any) -> tuple[Tensor, Loss]:
        loss = replace(self._objective.loss(self.model, batch), outputs=None)  # which would keep activations until the next step
        return loss.total, loss  # the tensor separately too: the wrappers look for tensors, not inside other values


def parallel(module: nn.Module) -> nn.Module:
    """The module itself for one process or when sharded; otherwise wrapped, so that backward sums gradients over all processes."""
    if world() == 1:
        return module
    if hasattr(module, "set_requires_gradient_sync"):  # sharded: FSDP reduces the gradients
        return module
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(None, lambda state, bucket: _add(bucket.buffer()))
    return wrapped


def release(module: nn.Module) -> None:
    """Give up what holds the process group, before the group itself is left.

    Where the reducer of DistributedDataParallel is the last to hold it, PyTorch waits for the group's thread without giving up the
    interpreter lock, which that thread may be waiting for: the process then never ends (seen in 1 of about 40 runs on a busy machine).
    """
    if isinstance(module, DistributedDataParallel):
        for name in ("reducer", "logger"):
            module.__dict__.pop(name, None)


@contextmanager
def adding(module: nn.Module, now: bool) -> Iterator[None]:
    """Let backward passes inside sum gradients over the processes now, or leave that to a later one."""
    if hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(now)  # type: ignore[operator]  # of FSDPModule, whose import takes half a second
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
    else:
        yield


def _add(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Sums, not DDP's means: the loss is per token, not per process."""
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


# -- sharding ----------------------------------------------------------------------------------------------------------


def sharded(objective: Objective, model: nn.Module) -> LossModule:
    """The loss with a copy of the model: rank 0's parameters, sharded over all processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise BadConfig(f"{scalars[0]} is a scalar, which cannot be sharded; give it one dimension, or use sharding='none'")
    module = LossModule(objective, copy.deepcopy(model))
    for tensor in chain(module.parameters(), module.buffers()):
        dist.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for part in [*(layer for layer in module.modules() if isinstance(layer, LAYERS) and _alone(layer, module)), module]:
        fully_shard(part, mesh=mesh)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)  # sums, not means: the loss is per token, not per process
        part.set_force_sum_reduction_for_comms(True)
    return module


def _alone(layer: nn.Module, whole: nn.Module) -> bool:
    """True if no other module uses a parameter of the layer."""
    inside, own = set(layer.modules()), set(layer.parameters())
    return not any(own & set(other.parameters(recurse=False)) for other in whole.modules() if other not in inside)


def is_cut(tensor: Tensor) -> TypeGuard[DTensor]:
    """True if the tensor is sharded over processes."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """The shard of this process."""
    return tensor.to_local() if is_cut(tensor) else tensor


def alike(tensor: Tensor, own: Tensor) -> Tensor:
    """A whole tensor, the same in all processes, moved to the device of `own` and sharded like it."""
    if not is_cut(own) or is_cut(tensor):
        return tensor.to(own.device)
    from torch.distributed.tensor import distribute_tensor

    # a copy: a view would keep the whole tensor alive
    return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements, src_data_rank=None).clone()


def gathered(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Whole tensors. All processes must call this together; those that do not `keep` get nothing."""
    found = {}
    for name, tensor in sorted(tensors.items()):  # the same order in all processes; files may have any
        whole = tensor.full_tensor() if is_cut(tensor) else tensor
        if keep:
            found[name] = whole
    return found


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make these tensors the model's parameters, whatever shape those had, and copy its buffers."""
    for name, parameter in model.named_parameters():
        parameter.data = tensors[name]
    for name, buffer in model.named_buffers():
        if name in tensors:
            buffer.copy_(tensors[name])


def empty(model: nn.Module) -> None:
    """Free the memory of the model's parameters until they are filled."""
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(0)


@contextmanager
def filled(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the model has these parameters, whole, in all processes. What is tuned inside, which is never sharded, is written to them."""
    fill(model, gathered(tensors))
    try:
        yield
        for name, buffer in model.named_buffers():  # parameters that are not sharded are the same tensors
            if name in tensors:
                tensors[name].copy_(buffer)
    finally:
        empty(model)

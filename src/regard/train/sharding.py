"""Sharded training: every process keeps a shard of each parameter, its gradient and optimizer state; a layer is gathered while it runs.

    bytes per process, N processes, Ψ parameters in float32:   parameters 4Ψ/N   gradients 4Ψ/N   Adam's two moments 8Ψ/N
    with copies in every process instead:                      parameters 4Ψ     gradients 4Ψ     Adam's two moments 8Ψ

This is ZeRO's third stage (Rajbhandari et al. 2020, arXiv:1910.02054), PyTorch's `fully_shard`. Averages of parameters are sharded
alike. Evaluations and checkpoints use whole tensors, gathered one after the other on rank 0: files do not depend on sharding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import BadConfig
from ..layers import Block
from .distributed import LossModule
from .task import Objective

if TYPE_CHECKING:  # half a second to import, for nothing where one process trains
    from torch.distributed.tensor import DTensor

LAYERS = (Block, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # gathered one at a time; the rest of a model at once


def sharded(task: Objective, model: nn.Module) -> LossModule:
    """The task's loss with a copy of the model: rank 0's parameters, sharded over all processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise BadConfig(f"{scalars[0]} is a scalar, which cannot be sharded; give it one dimension, or take sharding='none'")
    objective = LossModule(task, copy.deepcopy(model))
    for tensor in chain(objective.parameters(), objective.buffers()):
        dist.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for part in [*(layer for layer in objective.modules() if isinstance(layer, LAYERS) and _alone(layer, objective)), objective]:
        fully_shard(part, mesh=mesh)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)  # sums, not means: the loss is per token, not per process
        part.set_force_sum_reduction_for_comms(True)
    return objective


def _alone(layer: nn.Module, whole: nn.Module) -> bool:
    """Whether no other module uses a parameter of the layer."""
    inside, own = set(layer.modules()), set(layer.parameters())
    return not any(own & set(other.parameters(recurse=False)) for other in whole.modules() if other not in inside)


def is_cut(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether the tensor is sharded over processes."""
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
def filled(model: nn.Module, tensors: Mapping[str, Tensor], keep: bool) -> Iterator[None]:
    """Inside, the model has these parameters in the processes that `keep` them."""
    whole = gathered(tensors, keep)
    if keep:
        fill(model, whole)
    try:
        yield
    finally:
        empty(model)
